"""The names that hold in one manifest: what it and the files that it includes declare, merged.

Rules
1. Each manifest has its own targets and profiles; model names are the project's.
2. The same name twice, in one manifest and its includes, is an error that names both places.
3. A file's defaults win over those of the files that it includes. Two included files that give one default are an error
   unless the including file gives it too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from trtbuild.manifest.declared import MERGED, Declared, DeclaredModel, Entry, Picked
from trtbuild.manifest.files import ManifestFile
from trtbuild.manifest.format import fields
from trtbuild.manifest.yaml_text.problems import Problems, place

N = TypeVar("N", "Entry[fields.TargetFields]", "Entry[dict[str, fields.ShapeFields]]", DeclaredModel)


@dataclass(eq=False)
class Namespace:
    """What a manifest's models can name, and its models."""

    file: ManifestFile
    defaults: dict[str, Picked] = field(default_factory=dict)
    targets: dict[str, Entry[fields.TargetFields]] = field(default_factory=dict)
    profiles: dict[str, Entry[dict[str, fields.ShapeFields]]] = field(default_factory=dict)
    models: dict[str, DeclaredModel] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)


def merge(file: ManifestFile, declared: dict[ManifestFile, Declared], problems: Problems) -> Namespace:
    """The namespace of a manifest. `declared` holds every file of its closure."""
    space = Namespace(file, defaults=_defaults(file, declared, problems, {}))
    for part in file.closure():
        space.unread |= declared[part].unread
        for target in declared[part].targets:
            _define(space.targets, "target", target.name, target, problems)
        for profile in declared[part].profiles:
            _define(space.profiles, "profile", profile.name, profile, problems)
        for model in declared[part].models:
            _define(space.models, "model", model.name, model, problems)
    return space


def _define(table: dict[str, N], what: str, name: str, entry: N, problems: Problems) -> None:
    first = table.setdefault(name, entry)
    if first is not entry:
        problems.add(entry.key, f"{what} {name!r} is already defined at {place(first.key)}", "rename one of the two")


def _defaults(
    file: ManifestFile,
    declared: dict[ManifestFile, Declared],
    problems: Problems,
    known: dict[ManifestFile, dict[str, Picked]],
) -> dict[str, Picked]:
    if file in known:
        return known[file]
    own = declared[file].defaults
    merged: dict[str, Picked] = {}
    for included in file.includes:
        for name, picked in _defaults(included, declared, problems, known).items():
            first = merged.setdefault(name, picked)
            # A group is merged field by field: two of them are no conflict.
            if first is not picked and first.node is not picked.node and name not in own and name not in MERGED:
                problems.add(
                    picked.key,
                    f"two included files give the default `{name}`; the other is at {place(first.key)}",
                    f"keep one of the two, or give `{name}` in the defaults of {file.name}",
                )
    return known.setdefault(file, {**merged, **own})
