"""The sentences of code and documents follow the rules of `tests/docs/prose.py`.

`prose_not_done.txt` lists files that still break rules. No file may be added to it. With ``TRTBUILD_WRITE_PROSE=1`` this
test rewrites the list without the files that no longer break a rule.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.docs.prose import MOST_WORDS, RULES, Rule, faults, sentences

ROOT = Path(__file__).parents[2]
NOT_DONE = Path(__file__).parent / "prose_not_done.txt"
#: ``.work`` has generated projects and virtual environments.
FILES = [
    *(
        path
        for folder in ("trtbuild", "tests", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if ".work" not in path.parts
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "cache/README.md")),
]
#: The faulty examples of the rules, which are allowed in every file.
EXAMPLES = {rule.avoid for rule in RULES}


def faults_of_file(path: Path) -> list[str]:
    name = path.relative_to(ROOT)
    return [
        f"{name}:{sentence.line}: {sentence.text!r}: {fault}"
        for sentence in sentences(path)
        if sentence.text not in EXAMPLES
        for fault in faults(sentence.text)
    ]


def test_every_sentence_is_plain_except_in_the_listed_files() -> None:
    listed = set(NOT_DONE.read_text().splitlines())
    by_file = {path.relative_to(ROOT).as_posix(): faults_of_file(path) for path in FILES}
    if os.environ.get("TRTBUILD_WRITE_PROSE"):
        listed &= {name for name, file_faults in by_file.items() if file_faults}
        NOT_DONE.write_text("".join(f"{name}\n" for name in sorted(listed)))
    assert not [fault for name, file_faults in by_file.items() if name not in listed for fault in file_faults]
    assert not [name for name in sorted(listed) if not by_file.get(name)], "remove these files from the list"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.avoid)
def test_a_rule_finds_its_example(rule: Rule) -> None:
    assert re.search(rule.pattern, rule.avoid)
    assert not faults(rule.write)


def test_a_long_sentence_is_found() -> None:
    assert not faults("word " * MOST_WORDS)
    assert faults("word " * (MOST_WORDS + 1))


def test_docstrings_comments_and_strings_are_read(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text(
        '"""One.\n\nTwo. Three\nis long.\n\n1. Four.\n"""\n# Five\n# goes on.\nx = 1  # six\n'
        'def f():\n    """Seven."""\n    raise ValueError(f"eight of {x} words", hint="two words")\n'
    )
    assert sorted(s.text for s in sentences(source)) == [
        "Five goes on.", "Four.", "One.", "Seven.", "Three is long.", "Two.",
        "eight of 1 words", "six",
    ]  # fmt: skip


def test_a_program_in_a_string_is_read_as_code(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text('x = 1\nPROGRAM = """\nimport sys, os, re\n# Comment of it.\nprint("this is a message")\n"""\n')
    assert [(s.line, s.text) for s in sentences(source)] == [(4, "Comment of it."), (5, "this is a message")]


def test_documents_are_read_without_their_code(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(
        "# Title\n\nOne `a b c` word\nmore.\n\n* item\n\n```\ncode here\n```\n\n| cell | other |\n|---|---|\n"
    )
    assert [s.text for s in sentences(document)][:5] == ["Title", "One `code` word more.", "item", "cell", "other"]
