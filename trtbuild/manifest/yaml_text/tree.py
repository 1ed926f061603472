"""YAML text as a tree of nodes with their places. An alias (``*a``) is replaced by the node of its anchor (``&a``).

Rules
1. `scalars` defines the values of scalars.
2. A file has one document, whose root is a mapping. Keys are text, and a key occurs once in its mapping.
3. An alias inside its own anchor is rejected. Merge keys (``<<``) are rejected, because YAML 1.2 does not have them.
   Manifests have ``defaults`` and ``include`` instead.
4. A file has at most `MAX_BYTES` bytes. Its tree has at most `MAX_DEPTH` levels below the root, and `MAX_NODES` nodes.
   Each alias counts as a copy of its node. Otherwise a few lines with aliases of aliases could fill the memory.

The tree is built from the parser's events, because `yaml.compose` has no such limits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from trtbuild.core.model.spec import Origin
from trtbuild.manifest.yaml_text.problems import Problems, place_text
from trtbuild.manifest.yaml_text.scalars import InvalidScalar, tag_text, tagged_value
from trtbuild.manifest.yaml_text.syntax import add_syntax_problem

MAX_BYTES = 16 << 20
MAX_DEPTH = 64
MAX_NODES = 500_000

#: The parser of libyaml, if PyYAML has it. It is ten times as fast as PyYAML's own parser.
_FastLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Characters that YAML 1.2 does not allow: those outside its production `c-printable`.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_COLLECTION_TAGS = {"mapping": "tag:yaml.org,2002:map", "list": "tag:yaml.org,2002:seq"}


@dataclass(eq=False, slots=True)
class Node:
    """A value with its place. `data` is the value as a Python object, without places.

    A mapping has `items` (key → node of the value) and `keys` (key → place of the key). A list has `elements`. `size` is
    the number of nodes in the subtree, and `height` is the number of levels below this node."""

    file: str
    line: int
    column: int
    data: Any = None
    items: dict[str, Node] = field(default_factory=dict)
    keys: dict[str, Origin] = field(default_factory=dict)
    elements: list[Node] = field(default_factory=list)
    size: int = 1
    height: int = 0

    @property
    def origin(self) -> Origin:
        return Origin(self.file, self.line, self.column)

    def key_origin(self, key: str) -> Origin:
        """The place of a key of this mapping, or of the mapping when it has no such key."""
        return self.keys.get(key) or self.origin


def parse_tree(content: bytes, file: str, problems: Problems) -> Node | None:
    """The root of a file, or None if the file cannot be parsed or its root is not a mapping. Adds all problems."""
    text = _decode(content, file, problems)
    if text is None:
        return None
    builder = _TreeBuilder(file, problems)
    try:
        root = builder.build(_FastLoader(text))
    except yaml.MarkedYAMLError as error:
        add_syntax_problem(text, error, file, problems)
        return None
    except _ParsingStopped:
        return None
    start = Origin(file, 1, 1)
    if root is None or root.data is None:
        problems.add(start, "the file is empty", "a manifest starts with `version: 1`")
        return None
    if not isinstance(root.data, dict):
        problems.add(root.origin, f"a manifest is a mapping, not {kind_of(root.data)}", "it starts with `version: 1`")
        return None
    return root


def kind_of(value: object) -> str:
    """A description of a value for messages: ``the text 'abc'``, ``the number 3``, ``a list``."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        shown_text = value if len(value) <= 60 else value[:57] + "..."
        return f"the text {shown_text!r}"
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    return "a list" if value else "an empty list"


def _decode(content: bytes, file: str, problems: Problems) -> str | None:
    if len(content) > MAX_BYTES:
        problems.add(Origin(file, 1, 1), f"the file is larger than {MAX_BYTES >> 20} MiB", "is this a manifest?")
        return None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
        problems.add(
            _origin_at(file, before, len(before)),
            f"not UTF-8: byte 0x{content[error.start]:02x}",
            "save the file as UTF-8",
        )
        return None
    if match := _UNPRINTABLE.search(text):
        problems.add(
            _origin_at(file, text, match.start()),
            f"a control character (U+{ord(match[0]):04X})",
            "remove it, or write it as an escape in double quotes",
        )
        return None
    return text


def _origin_at(file: str, text: str, index: int) -> Origin:
    start = text.rfind("\n", 0, index) + 1
    return Origin(file, text.count("\n", 0, index) + 1, index - start + 1)


class _ParsingStopped(Exception):
    """The file cannot be read further. The problem has been added."""


class _TreeBuilder:
    def __init__(self, file: str, problems: Problems) -> None:
        self._file = file
        self._problems = problems
        self._anchors: dict[str, Node | None] = {}

    def build(self, loader: Any) -> Node | None:
        self._loader = loader
        root: Node | None = None
        documents = 0
        while loader.check_event():
            event = loader.get_event()
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._problems.add(self._origin(event), "a second document (`---`)", "a manifest is one document")
                    raise _ParsingStopped
            elif isinstance(event, ScalarEvent | MappingStartEvent | SequenceStartEvent | AliasEvent):
                root = self._node(event, 0)
        return root

    def _origin(self, event: Any) -> Origin:
        return Origin(self._file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _node(self, event: Any, depth: int) -> Node:
        if isinstance(event, AliasEvent):
            return self._alias(event, depth)
        mark = event.start_mark
        node = Node(self._file, mark.line + 1, mark.column + 1)
        self._check_depth(depth, node.origin)
        if event.anchor is not None:
            self._anchors[event.anchor] = None  # until the node ends: an alias inside the node would be a cycle
        if isinstance(event, ScalarEvent):
            try:
                node.data = tagged_value(event.value, event.tag, event.implicit[0])
            except InvalidScalar as fault:
                self._problems.add(node.origin, fault.text, fault.hint, hides_later=True)
                node.data = event.value
        elif isinstance(event, MappingStartEvent):
            self._check_tag(event, "mapping")
            self._fill_mapping(node, depth)
        else:
            self._check_tag(event, "list")
            self._fill_list(node, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _check_depth(self, depth: int, origin: Origin) -> None:
        if depth > MAX_DEPTH:
            self._problems.add(origin, f"nested more than {MAX_DEPTH} deep", "is this a manifest?")
            raise _ParsingStopped

    def _alias(self, event: Any, depth: int) -> Node:
        node = self._anchors.get(event.anchor)
        if node is not None:
            self._check_depth(depth + node.height, self._origin(event))
            return node
        if event.anchor in self._anchors:
            text, hint = f"*{event.anchor} is used inside its own anchor &{event.anchor}", None
        else:
            text, hint = (
                f"*{event.anchor} has no anchor above it",
                f"write &{event.anchor} before the value to repeat",
            )
        self._problems.add(self._origin(event), text, hint)
        raise _ParsingStopped

    def _check_tag(self, event: Any, kind: str) -> None:
        if event.tag not in (None, "!", _COLLECTION_TAGS[kind]):
            self._problems.add(
                self._origin(event), f"unknown tag {tag_text(event.tag)}", "write the value without a tag"
            )

    def _add_size(self, node: Node, child: Node) -> None:
        node.size += child.size
        node.height = max(node.height, child.height + 1)
        if node.size > MAX_NODES:
            self._problems.add(
                node.origin,
                f"more than {MAX_NODES} values, counting repeated aliases",
                "split it into several manifests",
            )
            raise _ParsingStopped

    def _fill_list(self, node: Node, depth: int) -> None:
        while not isinstance(event := self._loader.get_event(), SequenceEndEvent):
            child = self._node(event, depth + 1)
            node.elements.append(child)
            self._add_size(node, child)
        node.data = [child.data for child in node.elements]

    def _fill_mapping(self, node: Node, depth: int) -> None:
        while not isinstance(event := self._loader.get_event(), MappingEndEvent):
            key = self._node(event, depth + 1)
            is_merge_key = isinstance(event, ScalarEvent) and event.value == "<<" and event.implicit[0]
            child = self._node(self._loader.get_event(), depth + 1)
            self._add_size(node, key)
            self._add_size(node, child)
            if is_merge_key:
                self._problems.add(
                    key.origin, "merge keys (<<) are not supported", "repeat the fields, or put them in `defaults`"
                )
                for name, origin in child.keys.items():  # so that these fields are not reported as missing
                    node.items.setdefault(name, child.items[name])
                    node.keys.setdefault(name, origin)
            elif not isinstance(key.data, str):
                hint = (
                    f"put it in quotes: {str(event.value)!r}"
                    if isinstance(event, ScalarEvent) and event.value
                    else None
                )
                self._problems.add(self._origin(event), f"a key is a name, not {kind_of(key.data)}", hint)
            elif key.data in node.items:
                self._problems.add(
                    self._origin(event),
                    f"{key.data!r} occurs twice in one mapping; the first is at {place_text(node.keys[key.data])}",
                    "keep one of the two",
                )
            else:
                node.items[key.data] = child
                node.keys[key.data] = self._origin(event)
        node.data = {name: child.data for name, child in node.items.items()}
