"""A table of wordings to avoid, and functions that find the sentences of a file. `tests/docs/test_prose.py` uses both.

English is not the first language of many engineers who read this project.
"""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: A sentence with more words should be two sentences.
MOST_WORDS = 35

#: A string of at least four words is a message, not data, if it has one of these words.
_ENGLISH = re.compile(r"\b(the|a|an|is|are|of|not)\b")


@dataclass(frozen=True)
class Rule:
    """A pattern that no sentence may match. `avoid` is a sentence that matches, and `write` is a better one."""

    pattern: str
    reason: str
    avoid: str
    write: str


RULES = (
    Rule(
        r"^(What|Whatever|Who|Whoever|Whose|That)\b(?!.*\?$)",
        "a sentence begins with its subject: a noun",
        "What is no date is refused by who parses the line.",
        "The parser rejects lines with an invalid date.",
    ),
    Rule(
        r"^(Of|Nor|Not so)\b",
        "a sentence begins with its subject, and the verb follows",
        "Of two records the older counts.",
        "The older of two records counts.",
    ),
    Rule(
        r"\b(is|are|was|were|be|has|have|gives?|knows?|there) none\b",
        "a reader understands `none` only with the sentence before it",
        "A link that leads nowhere is none.",
        "A link that leads nowhere is not followed.",
    ),
    Rule(
        r"(?<![Tt]here )\b(is|are|was|were|be) no (?!longer\b|more\b|less\b|earlier\b|later\b)",
        "`is not a` is plain English",
        "A directory is no valid entry.",
        "A directory is not a valid entry.",
    ),
    Rule(
        r"\blet be\b|\blet go of\b",
        "say what happens",
        "An entry that cannot be removed is let be.",
        "An entry that cannot be removed is left in place.",
    ),
    Rule(
        r"\b(go|goes|going|went|gone) by\b|\bhad by\b|\bcome by\b",
        "use an ordinary verb",
        "A hit whose results cannot be gone by is a miss.",
        "A hit whose results must not be used is a miss.",
    ),
    Rule(
        r"\b(told|said|judged?|judges|tells|telling)\b",
        "name the value or the function that says it",
        "The parser is told which sizes there are.",
        "The parser reads the sizes from the profile.",
    ),
    Rule(
        r"\btaken? (for|at its word)\b|\btakes? .{1,40} for (a|an) (fact|mean)\b",
        "use an ordinary verb",
        "A missing file is taken for an empty one.",
        "A missing file counts as an empty file.",
    ),
    Rule(
        r"\b(whoever|whosoever|whatever|somebody|someone|nobody'?s?|anybody|whose is)\b",
        "name the person, the process or the function",
        "The lock is for whoever writes.",
        "The lock is for the process that writes.",
    ),
    Rule(
        r"\b(afar|anew|aside|lest|thereof|hitherto|mended|strangers?|in vain|kin|comes? to stand|by itself alone)\b",
        "the word is rare, or has a special meaning in this project",
        "The file is set aside.",
        "The file is moved to the quarantine.",
    ),
    Rule(
        r"\b(would|will|must|may|can|is|are) else\b|\belse (it|they|the|a) ",
        "write `otherwise`, or `if not`",
        "The file would else be read twice.",
        "Otherwise the file would be read twice.",
    ),
    Rule(
        r"\bof (one's|its|their|our|his|the \w+'s) own\b|\bof (ours|theirs|the user's)(?=[.,;:)]|$| (is|are|was|may)\b)",
        "write whose it is before the noun",
        "A file of the user's is read.",
        "The user's file is read.",
    ),
    Rule(
        r"\b(but for|all but|no more than|other than that)\b",
        "write `except`, `at most`",
        "All fields count but for the name.",
        "All fields except the name count.",
    ),
)


@dataclass(frozen=True)
class Sentence:
    """A sentence, and the line of the file on which its paragraph begins."""

    line: int
    text: str


def faults(sentence: str) -> list[str]:
    """Return the reasons why a sentence should be changed. For a plain sentence, the list is empty."""
    reasons = [f"{rule.reason} (for example: {rule.write})" for rule in RULES if re.search(rule.pattern, sentence)]
    if len(sentence.split()) > MOST_WORDS:
        reasons.append(f"{len(sentence.split())} words: write two sentences, of at most {MOST_WORDS} words each")
    return reasons


def sentences(path: Path) -> Iterator[Sentence]:
    """Yield the sentences of a Markdown document, or of the docstrings, comments and messages of a Python file.

    Messages are strings of at least four words, one of which is a common English word. A string that is a Python program
    is read like a Python file.
    """
    text = path.read_text(encoding="utf-8")
    paragraphs = _python(text) if path.suffix == ".py" else _markdown(text)
    for line, paragraph in paragraphs:
        for sentence in _split(paragraph):
            yield Sentence(line, sentence)


def _split(paragraph: str) -> Iterator[str]:
    """Yield the sentences of a paragraph. They also end at semicolons, colons and dashes. Code counts as one word."""
    plain = re.sub(r"``.+?``|`[^`]*`", "`code`", paragraph, flags=re.DOTALL)
    plain = re.sub(r"\]\([^)]*\)|[\[\]*]", " ", plain)
    for part in re.split(r"(?<=[.!?;])\)?\s+|\s—\s|(?<=:)\s+", plain):
        if words := " ".join(part.split()).strip("() "):
            yield words


def _python(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of the comments, docstrings and messages of a Python file."""
    yield from _comments(text)
    read_nodes: set[ast.AST] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring is not None:
                read_nodes.update(ast.walk(node.body[0]))
                yield from _blocks(docstring, node.body[0].lineno)
        elif node not in read_nodes and _ENGLISH.search(message := _message(node)) and message.count(" ") >= 3:
            read_nodes.update(ast.walk(node))
            if _is_program(message):
                yield from ((node.lineno + line - 1, part) for line, part in _python(textwrap.dedent(message)))
            else:
                yield node.lineno, message


def _message(node: Any) -> str:
    """Return the text of a string literal, with ``1`` in place of each inserted value. For other nodes, return ""."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "1" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _is_program(message: str) -> bool:
    if "\n" not in message:
        return False
    try:
        ast.parse(textwrap.dedent(message))
    except SyntaxError:
        return False
    return True


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield each comment. Consecutive lines that contain only comments are one paragraph."""
    start, last, words = 0, 0, ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, comment = token.start[0], token.string.lstrip("#: ")
        alone = token.line.strip().startswith("#")
        if alone and line == last + 1:
            last, words = line, f"{words} {comment}"
            continue
        if words:
            yield start, words
        start, last, words = line, line if alone else 0, comment
    if words:
        yield start, words


def _markdown(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of the blocks of a Markdown document, without code and comments."""

    def empty_lines(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")  # keeps the numbers of later lines

    without_code = re.sub(r"^```.*?^```", empty_lines, text, flags=re.DOTALL | re.MULTILINE)
    without_code = re.sub(r"<!--.*?-->", empty_lines, without_code, flags=re.DOTALL)
    for line, block in _blocks(without_code, 1):
        if block.lstrip().startswith("|"):
            yield from ((line, cell) for cell in block.split("|"))
        elif not block.startswith("    "):
            yield line, block


def _blocks(text: str, first_line: int) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of the paragraphs, list items, table rows and headings of a text."""
    start, block = first_line, ""
    for number, line in enumerate(text.splitlines(), first_line):
        block_start = re.match(r"\s*(\d+\.|[*+-]|\||#+)\s*", line)
        if not line.strip() or block_start:
            if block.strip():
                yield start, block
            start, block = number, line[block_start.end() :] if block_start and block_start[1] != "|" else line
        else:
            block += f"\n{line}"
    if block.strip():
        yield start, block
