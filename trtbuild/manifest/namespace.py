"""Merge the entries of a manifest and of the files that it includes.

Rules
1. Each manifest has its own targets and profiles. The names of models are unique in the project.
2. If a manifest and its included files define a name twice, the error names both places.
3. A file's defaults take precedence over the defaults of the files that it includes. If two included files set the same
   default, that is an error, unless the including file sets it, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from trtbuild.manifest.declared import MERGED_GROUPS, DeclaredEntries, DeclaredModel, LocatedValue, NamedEntry
from trtbuild.manifest.files import ManifestFile
from trtbuild.manifest.format import fields
from trtbuild.manifest.format.input_fields import ShapeFields
from trtbuild.manifest.yaml_text.problems import Problems, place_text

N = TypeVar("N", "NamedEntry[fields.TargetFields]", "NamedEntry[dict[str, ShapeFields]]", DeclaredModel)


@dataclass(eq=False)
class Namespace:
    """The models of a manifest, and the defaults, targets and profiles that they can name."""

    file: ManifestFile
    defaults: dict[str, LocatedValue] = field(default_factory=dict)
    targets: dict[str, NamedEntry[fields.TargetFields]] = field(default_factory=dict)
    profiles: dict[str, NamedEntry[dict[str, ShapeFields]]] = field(default_factory=dict)
    models: dict[str, DeclaredModel] = field(default_factory=dict)
    #: Sections of which a part could not be read in some file.
    incomplete_sections: set[str] = field(default_factory=set)


def merge_files(file: ManifestFile, declared: dict[ManifestFile, DeclaredEntries], problems: Problems) -> Namespace:
    """The namespace of a manifest. `declared` maps each file to its entries."""
    namespace = Namespace(file, defaults=_defaults(file, declared, problems, {}))
    for source_file in file.with_includes():
        namespace.incomplete_sections |= declared[source_file].incomplete_sections
        for target in declared[source_file].targets:
            _define(namespace.targets, "target", target.name, target, problems)
        for profile in declared[source_file].profiles:
            _define(namespace.profiles, "profile", profile.name, profile, problems)
        for model in declared[source_file].models:
            _define(namespace.models, "model", model.name, model, problems)
    return namespace


def _define(table: dict[str, N], noun: str, name: str, entry: N, problems: Problems) -> None:
    first = table.setdefault(name, entry)
    if first is not entry:
        problems.add(
            entry.name_origin,
            f"{noun} {name!r} is already defined at {place_text(first.name_origin)}",
            "rename one of the two",
        )


def _defaults(
    file: ManifestFile,
    declared: dict[ManifestFile, DeclaredEntries],
    problems: Problems,
    merged_by_file: dict[ManifestFile, dict[str, LocatedValue]],
) -> dict[str, LocatedValue]:
    """The defaults of a file, merged with those of the files that it includes (rule 3).

    `merged_by_file` keeps the results, because many files may include one file."""
    if file in merged_by_file:
        return merged_by_file[file]
    file_defaults = declared[file].defaults
    merged: dict[str, LocatedValue] = {}
    for included in file.includes:
        for name, located in _defaults(included, declared, problems, merged_by_file).items():
            first = merged.setdefault(name, located)
            # Both files may include a third file that sets the default: then the node is the same. Two files may also set
            # different fields of one group.
            if (
                first is not located
                and first.node is not located.node
                and name not in file_defaults
                and name not in MERGED_GROUPS
            ):
                problems.add(
                    located.name_origin,
                    f"two included files set the default `{name}`; the other is at {place_text(first.name_origin)}",
                    f"keep one of the two, or set `{name}` in the defaults of {file.name}",
                )
    return merged_by_file.setdefault(file, {**merged, **file_defaults})
