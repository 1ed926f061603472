"""What one file declares: its entries, each checked by itself, with their nodes for messages.

Every entry is checked alone, so a mistake in one hides no mistake in another, and a name whose entry is wrong is still
a known name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from trtbuild.core.model.spec import Origin
from trtbuild.core.values.nearest import nearest, suggestion
from trtbuild.manifest.files import ManifestFile
from trtbuild.manifest.format import fields, kinds
from trtbuild.manifest.format.wording import check, check_fields
from trtbuild.manifest.yaml_text.problems import Problems
from trtbuild.manifest.yaml_text.tree import Node, kind_of

T = TypeVar("T")

_NAMES = dict[kinds.Name, Any]
_PROFILE = dict[kinds.Identifier, fields.ShapeFields]
#: Fields of a model or of the defaults that are merged one by one.
MERGED = ("partition", "builder")


@dataclass(eq=False)
class Entry(Generic[T]):
    """A target or profile: its name and where that stands, its node, and its fields (None where they are wrong)."""

    name: str
    key: Origin
    node: Node
    fields: T | None


class Broken:
    """Stands for the value of a field that is wrong: the problem is known, and what depends on it is not looked at."""


BROKEN = Broken()


@dataclass(eq=False)
class Picked:
    """The value of one model field, the node it was written at, and the place of its name."""

    value: Any
    node: Node
    key: Origin


@dataclass(eq=False)
class DeclaredModel:
    """A model as it is written: its fields by name, those of `MERGED` one by one as ``builder.workspace``."""

    name: str
    key: Origin
    picked: dict[str, Picked]


@dataclass(eq=False)
class Declared:
    """Everything that one file declares."""

    file: ManifestFile
    defaults: dict[str, Picked] = field(default_factory=dict)
    targets: list[Entry[fields.TargetFields]] = field(default_factory=list)
    profiles: list[Entry[dict[str, fields.ShapeFields]]] = field(default_factory=list)
    models: list[DeclaredModel] = field(default_factory=list)
    #: Sections that declare more than could be read: a name that is not in them may still be right.
    unread: set[str] = field(default_factory=set)


def declare(file: ManifestFile, is_manifest: bool, problems: Problems) -> Declared:
    """Check a file's entries. Only a manifest must say its version; an included file may."""
    declared = Declared(file)
    root = file.root
    for section in ("targets", "profiles"):
        node = root.items.get(section) if root else None
        if root is None or not file.whole or (node is not None and not isinstance(node.data, dict | type(None))):
            declared.unread.add(section)
    if root is None:
        return declared
    known = list(fields.ManifestFields.model_fields)
    for name, key in root.keys.items():
        if name not in known:
            problems.add(key, f"unknown field {name!r}", suggestion(name, known, "fields of a manifest"))
    _check_version(root, is_manifest, problems)
    if (defaults := root.items.get("defaults")) and defaults.data is not None:
        if "source" in defaults.items:
            problems.add(
                defaults.keys["source"],
                "`source` cannot be a default",
                "write it in each model; any other field may stand here",
            )
            defaults = _without(defaults, "source")
        declared.defaults = _pick(fields.DefaultsFields, "defaults", defaults, root.keys["defaults"], problems)
    for name, key, node in _entries(root, "targets", problems):
        declared.targets.append(Entry(name, key, node, check(fields.TargetFields, name, node, key, problems)))
    for name, key, node in _entries(root, "profiles", problems):
        declared.profiles.append(Entry(name, key, node, check(_PROFILE, name, node, key, problems)))
    for name, key, node in _entries(root, "models", problems):
        declared.models.append(DeclaredModel(name, key, _pick(fields.ModelFields, name, node, key, problems)))
    return declared


def _check_version(root: Node, required: bool, problems: Problems) -> None:
    node = root.items.get("version")
    if node is None:
        if required:
            problems.add(root.origin, "the field `version` is missing", "start the manifest with `version: 1`")
    elif type(node.data) is int and node.data > 1:
        problems.add(
            node.origin, f"version {node.data} is newer than this trtbuild, which reads version 1", "upgrade trtbuild"
        )
    elif type(node.data) is not int or node.data != 1:
        problems.add(node.origin, f"`version` must be the number 1, not {kind_of(node.data)}", "write `version: 1`")


def _entries(root: Node, section: str, problems: Problems) -> list[tuple[str, Origin, Node]]:
    node = root.items.get(section)
    if node is None or node.data is None:
        return []
    if not isinstance(node.data, dict):
        problems.add(
            node.origin,
            f"`{section}` must be a mapping of names, not {kind_of(node.data)}",
            f"write `{section}:` and below it `name: …`",
        )
        return []
    check(_NAMES, section, node, root.keys[section], problems)
    return [(name, node.keys[name], child) for name, child in node.items.items()]


def _without(node: Node, name: str) -> Node:
    items = {key: child for key, child in node.items.items() if key != name}
    data = {key: child.data for key, child in items.items()}
    return Node(node.file, node.line, node.column, data, items, node.keys)


def _pick(kind: Any, label: str, node: Node, key: Origin, problems: Problems) -> dict[str, Picked]:
    value, broken = check_fields(kind, label, node, key, problems)
    # Without a value, even the fields' names cannot be trusted: then no field of this entry is looked at again.
    wrong = set(kind.model_fields) if value is None else {name for name in broken if name in kind.model_fields}
    # A misspelt name is one mistake: the field that it stands for is not told as missing too.
    unknown = [name for name in broken if name not in kind.model_fields]
    wrong |= {like for name in unknown if (like := nearest(name, kind.model_fields)) and like not in node.items}
    picked = {}
    for name in kind.model_fields:
        here, at = node.items.get(name, node), node.keys.get(name, key)
        if name in wrong:
            picked[name] = Picked(BROKEN, here, at)
        elif value is not None and name in value.model_fields_set:
            inner = getattr(value, name)
            picked[name] = Picked(inner, here, at)
            if name in MERGED and inner is not None:
                for setting in inner.model_fields_set:
                    picked[f"{name}.{setting}"] = Picked(
                        getattr(inner, setting), here.items[setting], here.keys[setting]
                    )
    return picked
