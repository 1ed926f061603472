"""YAML's own errors in our words: where the mistake is (not where the parser gave up), and what to type.

libyaml says less than PyYAML's parser in Python ("found character '\\t' …"), so the words are made from the latter's
`problem` and `context` (PyYAML 6.0, scanner.py and parser.py). What is not in `_WORDS` is told as PyYAML tells it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from trtbuild.core.model.spec import Origin
from trtbuild.manifest.yaml_text.problems import Problems


@dataclass(frozen=True)
class _Words:
    """What is said where `problem` and `context` match; their groups may be used. `at` is whose place is told.

    ``{line}`` stands for the line of the context: where the mapping, list or text began.
    """

    problem: str
    context: str
    text: str
    hint: str | None
    at: Literal["problem", "context"] = "problem"


_ALIKE = "indent it by as many spaces as the lines that it belongs to"
_WORDS: Sequence[_Words] = (
    _Words(r".*'\\t'.*", "", "a tab: YAML is indented with spaces", "replace the tab by spaces"),
    _Words(
        "mapping values are not allowed.*",
        "",
        "a `:` that cannot stand here",
        f"put text that holds `: ` in quotes; if this is a `key: value`, {_ALIKE}",
    ),
    _Words(
        r"expected ',' or '([}\]])', but got '<(stream end|document start|block end)>'",
        ".*",
        "a bracket that is never closed",
        "add the missing `{0}`",
        "context",
    ),
    _Words(
        r"expected ',' or '([}\]])', but got .*",
        ".*",
        "a `,` or `{0}` is missing before this, in the brackets that open in line {line}",
        "separate entries with `,`, and close the brackets with `{0}`",
    ),
    _Words("found unexpected end of stream", ".*quoted.*", "a quote that is never closed", "add the quote", "context"),
    _Words(
        r"expected <block end>, but found '([{}\[\],:]|<scalar>)'",
        ".*",
        "text after the end of a value",
        "put the whole value in quotes, or remove what is too much",
    ),
    _Words(
        "expected <block end>, but found .*",
        ".*block (mapping|collection)",
        "this line does not fit to the lines from line {line} on: it is indented in another way",
        _ALIKE,
    ),
    _Words(
        "could not find expected ':'",
        ".*",
        "a key without a `:`",
        "write `key: value`, with a space behind the colon",
        "context",
    ),
    _Words(
        r"expected the node content, but found '?([^']*?)'?",
        ".*",
        "a value is missing before `{0}`",
        "write the value, or null for none",
    ),
    _Words(
        r"found character '(.*)' that cannot start any token",
        ".*",
        "a value cannot start with `{0}`",
        "put it in quotes",
    ),
    _Words(
        r"found unknown escape character '?\"?(.*?)\"?'?",
        ".*",
        "`\\{0}` means nothing in double quotes",
        "use single quotes, or write the backslash twice",
    ),
    _Words(
        "sequence entries are not allowed.*",
        "",
        "a `- ` entry that cannot stand here",
        "start the list on a line of its own, below its key",
    ),
)

#: A key and its value without a space between them (and no URL).
_GLUED = re.compile(r"\s*([\w.-]+):([^\s/:].*)")


def add_syntax_problem(text: str, error: yaml.MarkedYAMLError, file: str, problems: Problems) -> None:
    """Add the problem that made `text` no YAML. `error` is what a faster parser said."""
    error = _worded_better(text) or error
    if _add_glued(text, error, file, problems):
        return
    said, context = error.problem or "it cannot be parsed", error.context or ""
    began = error.context_mark
    for words in _WORDS:
        match = re.fullmatch(words.problem, said, re.DOTALL)
        if match is None or (words.context and not re.fullmatch(words.context, context)):
            continue
        mark = began if words.at == "context" and began else error.problem_mark
        told = words.text.format(*match.groups(), line=began.line + 1 if began else 1)
        problems.add(_origin(file, mark), f"not YAML: {told}", words.hint and words.hint.format(*match.groups()))
        return
    mark = error.problem_mark or began
    if context and began and began.line != (mark.line if mark else -1):
        said += f" ({context}, from line {began.line + 1})"
    problems.add(_origin(file, mark), f"not YAML: {said}")


def _add_glued(text: str, error: yaml.MarkedYAMLError, file: str, problems: Problems) -> bool:
    """Add a problem for ``version:1``, which is text that goes on to the first `:` of the next line."""
    mark = error.problem_mark
    if mark is None or mark.line == 0 or not (error.problem or "").startswith("mapping values are not allowed"):
        return False
    before = text.splitlines()[mark.line - 1]
    glued = _GLUED.fullmatch(before)
    if glued:
        at = Origin(file, mark.line, before.index(":") + 1)
        problems.add(at, "not YAML: a key needs a space behind its `:`", f"write `{glued[1]}: {glued[2]}`")
    return glued is not None


def _worded_better(text: str) -> yaml.MarkedYAMLError | None:
    try:
        loader: Any = yaml.SafeLoader(text)
        while loader.check_event():
            loader.get_event()
    except yaml.MarkedYAMLError as error:
        return error
    return None


def _origin(file: str, mark: yaml.Mark | None) -> Origin:
    return Origin(file, mark.line + 1, mark.column + 1) if mark else Origin(file, 1, 1)
