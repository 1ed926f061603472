"""YAML text as nodes with exact positions, and the files that are rejected."""

from __future__ import annotations

from typing import Any

import pytest

from trtbuild.errors import ManifestErrors
from trtbuild.manifest.yaml_text import tree
from trtbuild.manifest.yaml_text.problems import Problems
from trtbuild.manifest.yaml_text.tree import Node, parse_tree


def parse(text: str | bytes) -> Node:
    problems = Problems()
    root = parse_tree(text if isinstance(text, bytes) else text.encode(), "a.yaml", problems)
    problems.raise_if_any()
    assert root is not None
    return root


def problems_of(text: str | bytes) -> list[tuple[int, int, str]]:
    """Return (line, column, message → hint) for each problem of a rejected text."""
    with pytest.raises(ManifestErrors) as caught:
        parse(text)
    return [(p.line, p.column, f"{p.text} → {p.hint}") for p in caught.value.problems]


def test_positions_of_nodes_are_in_characters() -> None:
    root = parse("a: 1\nbé: [x, {c: 2}]\nd:\n  - y\n")
    assert root.data == {"a": 1, "bé": ["x", {"c": 2}], "d": ["y"]}
    inner = root.items["bé"].elements[1]
    assert (inner.origin.file, inner.line, inner.column) == ("a.yaml", 2, 9)
    assert (inner.items["c"].line, inner.items["c"].column) == (2, 13)
    assert (root.keys["d"].line, root.keys["d"].column) == (3, 1)
    assert (root.items["d"].elements[0].line, root.items["d"].elements[0].column) == (4, 5)


def test_a_byte_order_mark_does_not_change_positions() -> None:
    assert parse(b"\xef\xbb\xbfa: 1").keys["a"].column == 1


def test_anchors_and_aliases_share_a_node() -> None:
    root = parse("a: &x [1, 2]\nb: *x\n")
    assert root.data == {"a": [1, 2], "b": [1, 2]}
    assert root.items["b"] is root.items["a"]


def test_both_parsers_of_pyyaml_give_the_same_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a: &x {b: 'c', d: [1, 2.5, !!str 3]}\ne: *x\nf: |\n  long\n  text\n? g\n: h\n"

    def positions(node: Node) -> Any:
        inner = {name: positions(child) for name, child in node.items.items()}
        return node.line, node.column, node.data, inner, [positions(child) for child in node.elements]

    fast = positions(parse(text))
    monkeypatch.setattr(tree, "_FastLoader", tree.yaml.SafeLoader)
    assert positions(parse(text)) == fast


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("", 1, 1, "the file is empty"),
        ("# only a comment\n", 1, 1, "the file is empty"),
        ("---\n...\n", 1, 1, "the file is empty"),
        ("null\n", 1, 1, "the file is empty"),
        ("- a\n", 1, 1, "a manifest is a mapping, not a list"),
        ("\nhello\n", 2, 1, "a manifest is a mapping, not the text 'hello'"),
        ("a: 1\n\tb: 2\n", 2, 1, "a tab: YAML is indented with spaces"),
        ("a: [1, 2\nb: 3\n", 2, 2, "not YAML"),
        ("a: b: c\n", 1, 5, "a `:` is not allowed here"),
        ("a: @x\n", 1, 4, "put it in quotes"),
        ("a: 'x\n", 1, 4, "a quote that is never closed"),
        ("a: 1\nb: 2\na: 3\n", 3, 1, "'a' occurs twice in one mapping; the first is at a.yaml:1:1"),
        ("a: {b: 1, c: 2, b: 3}\n", 1, 17, "'b' occurs twice in one mapping; the first is at a.yaml:1:5"),
        ("1: a\n", 1, 1, "a key is a name, not the number 1 → put it in quotes: '1'"),
        ("true: a\n", 1, 1, "a key is a name, not true"),
        ("? [a]\n: b\n", 1, 3, "a key is a name, not a list"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", 3, 3, "merge keys (<<) are not supported"),
        ("a: *x\n", 1, 4, "*x has no anchor above it → write &x"),
        ("a: &x [*x]\n", 1, 8, "*x is used inside its own anchor"),
        ("a: 1\n---\nb: 2\n", 2, 1, "a second document"),
        ("a: !!python/object/apply:os.system [ls]\n", 1, 4, "unknown tag !!python/object/apply:os.system"),
        ("a: !mine 3\n", 1, 4, "unknown tag !mine"),
        ("a: .nan\n", 1, 4, ".nan (not a number) is not allowed"),
        ("a: 1\nb: 010\n", 2, 4, "010 is read differently"),
        ("a: 'x\x07y'\n", 1, 6, "a control character (U+0007)"),
    ],
)
def test_rejects_invalid_text(text: str, line: int, column: int, words: str) -> None:
    ((found_line, found_column, message),) = problems_of(text)
    assert words in message
    assert (found_line, found_column) == (line, column)


def test_rejects_half_a_surrogate_pair() -> None:
    # PyYAML's two parsers report different columns and messages
    ((line, _, _),) = problems_of('a: "\\ud800"\n')
    assert line == 1


def test_rejects_bytes_that_are_not_utf8_with_their_position() -> None:
    assert problems_of(b"a: 1\nb: caf\xe9\n") == [(2, 7, "not UTF-8: byte 0xe9 → save the file as UTF-8")]
    assert "not UTF-8" in problems_of("a: 1".encode("utf-16"))[0][2]


def test_all_problems_of_a_tree_are_reported_at_once() -> None:
    assert len(problems_of("a: .nan\nb: 010\na: 1\n1: 2\n")) == 4


def test_rejects_alias_bombs() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    ((_, _, message),) = problems_of("\n".join(levels))
    assert "values, counting repeated aliases" in message


def test_rejects_files_that_are_too_deep_or_too_large() -> None:
    assert "nested more than" in problems_of("a: " + "[" * 50_000)[0][2]
    assert "nested more than" in problems_of("- " * 5000 + "a")[0][2]
    deep_aliases = f"a: &a {'[' * 40}{']' * 40}\nb: {'[' * 40}*a{']' * 40}\n"
    assert problems_of(deep_aliases) == [(2, 44, "nested more than 64 deep → is this a manifest?")]
    assert "larger than" in problems_of(b"#" * (tree.MAX_BYTES + 1))[0][2]
