"""Messages for YAML syntax errors, with the place of the mistake and a hint.

A file is parsed by libyaml. After an error, PyYAML's slower parser in Python parses the file again, because its messages
are more precise. The fields `problem` and `context` of its error select a message of `_WORDINGS`. The texts in these fields
are those of PyYAML 6.0 (scanner.py and parser.py). If no message fits, PyYAML's text is shown.
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
class _Wording:
    """The message for errors whose `problem` and `context` match. An empty `context` matches all errors.

    `at` selects the place that the message names: the place of the problem, or the start of its context. The context is the
    mapping, list or text that contains the problem. In `text`, ``{line}`` is the line where the context starts, and ``{0}``
    is the first group of `problem`.
    """

    problem: str
    context: str
    text: str
    hint: str | None
    at: Literal["problem", "context"] = "problem"


_INDENT_HINT = "indent it by as many spaces as the lines that it belongs to"
_WORDINGS: Sequence[_Wording] = (
    _Wording(r".*'\\t'.*", "", "a tab: YAML is indented with spaces", "replace the tab by spaces"),
    _Wording(
        "mapping values are not allowed.*",
        "",
        "a `:` is not allowed here",
        f"put text that contains `: ` in quotes; if this is a `key: value`, {_INDENT_HINT}",
    ),
    _Wording(
        r"expected ',' or '([}\]])', but got '<(stream end|document start|block end)>'",
        ".*",
        "a bracket that is never closed",
        "add the missing `{0}`",
        "context",
    ),
    _Wording(
        r"expected ',' or '([}\]])', but got .*",
        ".*",
        "a `,` or `{0}` is missing before this, in the brackets that open in line {line}",
        "separate entries with `,`, and close the brackets with `{0}`",
    ),
    _Wording(
        "found unexpected end of stream", ".*quoted.*", "a quote that is never closed", "add the quote", "context"
    ),
    _Wording(
        r"expected <block end>, but found '([{}\[\],:]|<scalar>)'",
        ".*",
        "text after the end of a value",
        "put the whole value in quotes, or remove the text after it",
    ),
    _Wording(
        "expected <block end>, but found .*",
        ".*block (mapping|collection)",
        "this line is indented in another way than the lines from line {line} on",
        _INDENT_HINT,
    ),
    _Wording(
        "could not find expected ':'",
        ".*",
        "a key without a `:`",
        "write `key: value`, with a space after the colon",
        "context",
    ),
    _Wording(
        r"expected the node content, but found '?([^']*?)'?",
        ".*",
        "a value is missing before `{0}`",
        "write the value, or null",
    ),
    _Wording(
        r"found character '(.*)' that cannot start any token",
        ".*",
        "a value cannot start with `{0}`",
        "put it in quotes",
    ),
    _Wording(
        r"found unknown escape character '?\"?(.*?)\"?'?",
        ".*",
        "`\\{0}` means nothing in double quotes",
        "use single quotes, or write the backslash twice",
    ),
    _Wording(
        "sequence entries are not allowed.*",
        "",
        "a `- ` entry is not allowed here",
        "start the list on a new line, below its key",
    ),
)

#: A key and a value without a space between them, such as ``version:1``. URLs do not match.
_MISSING_SPACE = re.compile(r"\s*([\w.-]+):([^\s/:].*)")


def add_syntax_problem(text: str, error: yaml.MarkedYAMLError, file: str, problems: Problems) -> None:
    """Add the problem of `text`. `error` is libyaml's error."""
    error = _python_parser_error(text) or error
    if _add_missing_space(text, error, file, problems):
        return
    message, context = error.problem or "it cannot be parsed", error.context or ""
    start = error.context_mark
    for wording in _WORDINGS:
        match = re.fullmatch(wording.problem, message, re.DOTALL)
        if match is None or (wording.context and not re.fullmatch(wording.context, context)):
            continue
        mark = start if wording.at == "context" and start else error.problem_mark
        description = wording.text.format(*match.groups(), line=start.line + 1 if start else 1)
        hint = wording.hint and wording.hint.format(*match.groups())
        problems.add(_origin(file, mark), f"not YAML: {description}", hint)
        return
    mark = error.problem_mark or start
    if context and start and start.line != (mark.line if mark else -1):
        message += f" ({context}, from line {start.line + 1})"
    problems.add(_origin(file, mark), f"not YAML: {message}")


def _add_missing_space(text: str, error: yaml.MarkedYAMLError, file: str, problems: Problems) -> bool:
    """Add the problem of a line such as ``version:1``, and return whether there is one.

    YAML reads ``version:1`` as text that continues in the next line. So the parser reports the `:` of the next line.
    """
    mark = error.problem_mark
    if mark is None or mark.line == 0 or not (error.problem or "").startswith("mapping values are not allowed"):
        return False
    line_before = text.splitlines()[mark.line - 1]
    match = _MISSING_SPACE.fullmatch(line_before)
    if match:
        colon = Origin(file, mark.line, line_before.index(":") + 1)
        problems.add(colon, "not YAML: a key needs a space after its `:`", f"write `{match[1]}: {match[2]}`")
    return match is not None


def _python_parser_error(text: str) -> yaml.MarkedYAMLError | None:
    try:
        loader: Any = yaml.SafeLoader(text)
        while loader.check_event():
            loader.get_event()
    except yaml.MarkedYAMLError as error:
        return error
    return None


def _origin(file: str, mark: yaml.Mark | None) -> Origin:
    return Origin(file, mark.line + 1, mark.column + 1) if mark else Origin(file, 1, 1)
