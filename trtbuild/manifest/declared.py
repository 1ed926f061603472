"""Check the entries of one file, such as its targets and models.

Each entry is checked separately, so a mistake in one does not hide mistakes in others. The name of an invalid entry counts
as known, so other entries may use it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from trtbuild.core.model.spec import Origin
from trtbuild.core.values.nearest import nearest, suggestion
from trtbuild.manifest.files import ManifestFile
from trtbuild.manifest.format import fields, kinds
from trtbuild.manifest.format.input_fields import ShapeFields
from trtbuild.manifest.format.wording import check, check_fields
from trtbuild.manifest.yaml_text.problems import Problems
from trtbuild.manifest.yaml_text.tree import Node, kind_of

T = TypeVar("T")

_NAME_TABLE = dict[kinds.Name, Any]
_PROFILE_TABLE = dict[kinds.Identifier, ShapeFields]
#: Groups of fields. A model may set some fields of a group, and gets the other fields from the defaults.
MERGED_GROUPS = ("partition", "builder")


@dataclass(eq=False)
class NamedEntry(Generic[T]):
    """A target or profile, with the place of its name and its node in the file.

    `fields` is None for an invalid profile, and for a target without a valid `sm`. Other invalid fields of a target are
    left out."""

    name: str
    name_origin: Origin
    node: Node
    fields: T | None


class Invalid:
    """The value of an invalid field. Its problem has been added. Checks that need the value are skipped."""


INVALID = Invalid()


@dataclass(eq=False)
class LocatedValue:
    """The value of one field of a model, its node in the file, and the place of the field's name."""

    value: Any
    node: Node
    name_origin: Origin


@dataclass(eq=False)
class DeclaredModel:
    """A model without the defaults. `fields` also has the fields inside `MERGED_GROUPS`, by ``<group>.<field>``."""

    name: str
    name_origin: Origin
    fields: dict[str, LocatedValue]


@dataclass(eq=False)
class DeclaredEntries:
    """Everything that one file declares."""

    file: ManifestFile
    defaults: dict[str, LocatedValue] = field(default_factory=dict)
    targets: list[NamedEntry[fields.TargetFields]] = field(default_factory=list)
    profiles: list[NamedEntry[dict[str, ShapeFields]]] = field(default_factory=list)
    models: list[DeclaredModel] = field(default_factory=list)
    #: Sections of which a part could not be read. A name that is not found in them may be in that part.
    incomplete_sections: set[str] = field(default_factory=set)


def check_entries(file: ManifestFile, is_manifest: bool, problems: Problems) -> DeclaredEntries:
    """Check the entries of a file, and return them. Invalid fields are left out or marked (`NamedEntry.fields`, `INVALID`).

    A manifest must have a version; an included file may have one."""
    declared = DeclaredEntries(file)
    root = file.root
    for section in ("targets", "profiles"):
        node = root.items.get(section) if root else None
        if root is None or not file.complete or (node is not None and not isinstance(node.data, dict | type(None))):
            declared.incomplete_sections.add(section)
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
                "write it in each model; every other field can have a default",
            )
            defaults = _without(defaults, "source")
        declared.defaults = _located_values(
            fields.DefaultsFields, "defaults", defaults, root.keys["defaults"], problems
        )
    for name, key, node in _entries(root, "targets", problems):
        declared.targets.append(NamedEntry(name, key, node, check(fields.TargetFields, name, node, key, problems)))
    for name, key, node in _entries(root, "profiles", problems):
        declared.profiles.append(NamedEntry(name, key, node, check(_PROFILE_TABLE, name, node, key, problems)))
    for name, key, node in _entries(root, "models", problems):
        declared.models.append(DeclaredModel(name, key, _located_values(fields.ModelFields, name, node, key, problems)))
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
    """The entries of a section: the name, the place of the name, and the node of each."""
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
    check(_NAME_TABLE, section, node, root.keys[section], problems)
    return [(name, node.keys[name], child) for name, child in node.items.items()]


def _without(node: Node, name: str) -> Node:
    items = {key: child for key, child in node.items.items() if key != name}
    data = {key: child.data for key, child in items.items()}
    return Node(node.file, node.line, node.column, data, items, node.keys)


def _located_values(kind: Any, label: str, node: Node, key: Origin, problems: Problems) -> dict[str, LocatedValue]:
    """The fields that the file sets in a model or in the defaults, by name.

    An invalid field has the value `INVALID`, and its problem is added. `label` is the entry's name, and `key` is the place
    of this name."""
    value, invalid = check_fields(kind, label, node, key, problems)
    # If `value` is None, the valid fields are unknown. Then every field of the entry counts as invalid.
    invalid_fields = (
        set(kind.model_fields) if value is None else {name for name in invalid if name in kind.model_fields}
    )
    # A misspelt name is only one mistake. So the field that was probably meant is not reported as missing.
    unknown = [name for name in invalid if name not in kind.model_fields]
    invalid_fields |= {
        similar for name in unknown if (similar := nearest(name, kind.model_fields)) and similar not in node.items
    }
    values = {}
    for name in kind.model_fields:
        value_node, key_place = node.items.get(name, node), node.keys.get(name, key)
        if name in invalid_fields:
            values[name] = LocatedValue(INVALID, value_node, key_place)
        elif value is not None and name in value.model_fields_set:
            field_value = getattr(value, name)
            values[name] = LocatedValue(field_value, value_node, key_place)
            if name in MERGED_GROUPS and field_value is not None:
                for setting in field_value.model_fields_set:
                    values[f"{name}.{setting}"] = LocatedValue(
                        getattr(field_value, setting), value_node.items[setting], value_node.keys[setting]
                    )
    return values
