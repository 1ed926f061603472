"""The recipe of the package step: all contents of the package, with the keys of engines in place of their bytes.

Parts that a later version added are left out if they have the default value, so that older packages keep their keys.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from trtbuild.core.model.spec import Profile, Target
from trtbuild.core.packages.contents import PackageContents, ToolchainPartitions
from trtbuild.core.packages.package_index import SCHEMA, schema_for
from trtbuild.core.packages.package_writing import dim_to_json, shape_to_json
from trtbuild.core.recipes.key_fields import settings_of
from trtbuild.core.recipes.keys import STEP_VERSIONS, truncated_part
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.values.encoding import Shared, Value


def package_recipe(contents: PackageContents) -> Recipe:
    parts: list[tuple[str, Value]] = [
        ("model", contents.model.name),
        ("inputs", [dict(entry) for entry in contents.inputs()]),
        ("outputs", [dict(entry) for entry in contents.interface.outputs]),
        ("output tree", contents.interface.output_tree),
        ("dims", [dim_to_json(dim) for dim in contents.dims()]),
        ("profiles", [_profile_part(profile) for profile in contents.model.profiles]),
        ("precision", contents.model.precision),
        ("targets", _targets(contents)),
        ("partitions", _partition_documents(contents)),
        ("engines", {f"{engine.partition}@{engine.target}": engine.key for engine in contents.engines}),
        ("weights", contents.needed_weights()),
        ("modules", contents.modules.sha256),
        ("origins", dict(contents.origins)),
        ("reference", contents.model.reference),
        *_other_origins_part(contents),
        *_other_precisions_part(contents),
        *_operators_part(contents),
        *_state_part(contents),
        *_plugins_part(contents),
        *truncated_part(contents.model.partition.truncate_double),
    ]
    schema = schema_for(contents.interface.output_tree, has_state=bool(contents.interface.state))
    if schema != SCHEMA:
        parts.append(("format", schema))
    return Recipe("package", STEP_VERSIONS["package"], tuple(parts))


def _other_origins_part(contents: PackageContents) -> list[tuple[str, Value]]:
    others = {target: dict(origins) for target, origins in contents.other_origins.items()}
    return [("other origins", others)] if others else []


def _other_precisions_part(contents: PackageContents) -> list[tuple[str, Value]]:
    others = contents.model.precisions.names[1:]
    return [("other precisions", list(others))] if others else []


def _operators_part(contents: PackageContents) -> list[tuple[str, Value]]:
    operators = contents.interface.operators
    return [("operators", [operator.to_json() for operator in operators])] if operators else []


def _state_part(contents: PackageContents) -> list[tuple[str, Value]]:
    state = contents.interface.state
    return [("state", [entry.to_json() for entry in state])] if state else []


def _plugins_part(contents: PackageContents) -> list[tuple[str, Value]]:
    packed = contents.packed_plugins()
    if packed is None:
        return []
    library = None if contents.packed_library is None else contents.packed_library.sha256
    return [("plugins", {**packed.to_json(), "sha256": library})]


def _targets(contents: PackageContents) -> dict[str, Shared]:
    builder = contents.model.builder
    return {
        target.name: _target_part(
            target,
            tuple(map(type, vars(target).values())),
            contents.toolchains[target.name],
            tuple(contents.sms[target.name]),
            builder.version_compatible,
            builder.exclude_lean_runtime,
        )
        for target in contents.model.targets
    }


def _partition_documents(contents: PackageContents) -> dict[str, Value]:
    """Target → the document of its partitions. Targets of one toolchain share one encoded document."""
    encoded: dict[int, Shared] = {}
    documents: dict[str, Value] = {}
    for name, toolchain_partitions in contents.partitions_by_target.items():
        identity = id(toolchain_partitions)
        if identity not in encoded:
            encoded[identity] = Shared(_partitions_document(toolchain_partitions))
        documents[name] = encoded[identity]
    return documents


@lru_cache(maxsize=1024)  # because the packages of a project have few different targets
def _target_part(
    target: Target,
    _: tuple[type, ...],  # the types of the target's fields are compared, too, because 1 == True
    version: str,
    sms: tuple[int, ...],
    version_compatible: bool,
    exclude_lean_runtime: bool,
) -> Shared:
    part = {**settings_of(target), "version": version, "sms": list(sms), "version_compatible": version_compatible}
    return Shared({**part, "exclude_lean_runtime": True} if exclude_lean_runtime else part)


def _partitions_document(toolchain_partitions: ToolchainPartitions) -> dict[str, Any]:
    return {
        **toolchain_partitions.partitions.to_json(),
        "programs": {graph: output.sha256 for graph, output in toolchain_partitions.programs.items()},
    }


def _profile_part(profile: Profile) -> dict[str, Any]:
    return {"name": profile.name, "shapes": {name: shape_to_json(shape) for name, shape in profile.shapes}}
