"""The names that are defined in one manifest and in the files that it includes, merged.

Rules
1. Each manifest has its own targets and profiles. The names of models are unique in the project.
2. If a name is defined twice in a manifest and its includes, the error names both places.
3. A file's defaults take precedence over the defaults of the files that it includes. If two included files set the same
   default, that is an error, unless the including file sets it, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from trtbuild.manifest.declared import MERGED, Declared, DeclaredModel, Entry, LocatedValue
from trtbuild.manifest.files import ManifestFile
from trtbuild.manifest.format import fields
from trtbuild.manifest.yaml_text.problems import Problems, place

N = TypeVar("N", "Entry[fields.TargetFields]", "Entry[dict[str, fields.ShapeFields]]", DeclaredModel)


@dataclass(eq=False)
class Namespace:
    """The models of a manifest, and the defaults, targets and profiles that they can use."""

    file: ManifestFile
    defaults: dict[str, LocatedValue] = field(default_factory=dict)
    targets: dict[str, Entry[fields.TargetFields]] = field(default_factory=dict)
    profiles: dict[str, Entry[dict[str, fields.ShapeFields]]] = field(default_factory=dict)
    models: dict[str, DeclaredModel] = field(default_factory=dict)
    incomplete_sections: set[str] = field(default_factory=set)


def merge(file: ManifestFile, declared: dict[ManifestFile, Declared], problems: Problems) -> Namespace:
    """The namespace of a manifest. `declared` has the manifest and every file that it includes."""
    space = Namespace(file, defaults=_defaults(file, declared, problems, {}))
    for part in file.closure():
        space.incomplete_sections |= declared[part].incomplete_sections
        for target in declared[part].targets:
            _define(space.targets, "target", target.name, target, problems)
        for profile in declared[part].profiles:
            _define(space.profiles, "profile", profile.name, profile, problems)
        for model in declared[part].models:
            _define(space.models, "model", model.name, model, problems)
    return space


def _define(table: dict[str, N], noun: str, name: str, entry: N, problems: Problems) -> None:
    first = table.setdefault(name, entry)
    if first is not entry:
        problems.add(entry.key, f"{noun} {name!r} is already defined at {place(first.key)}", "rename one of the two")


def _defaults(
    file: ManifestFile,
    declared: dict[ManifestFile, Declared],
    problems: Problems,
    known: dict[ManifestFile, dict[str, LocatedValue]],
) -> dict[str, LocatedValue]:
    if file in known:
        return known[file]
    own = declared[file].defaults
    merged: dict[str, LocatedValue] = {}
    for included in file.includes:
        for name, located in _defaults(included, declared, problems, known).items():
            first = merged.setdefault(name, located)
            # A group is merged field by field, so two files may set the same group.
            if first is not located and first.node is not located.node and name not in own and name not in MERGED:
                problems.add(
                    located.key,
                    f"two included files set the default `{name}`; the other is at {place(first.key)}",
                    f"keep one of the two, or set `{name}` in the defaults of {file.name}",
                )
    return known.setdefault(file, {**merged, **own})
