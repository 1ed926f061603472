"""Makes the index of a built package from its contents.

The index has the size and SHA-256 of every file that a loader needs, so that the loader can verify files before their use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trtbuild.core.model.spec import Profile, Target
from trtbuild.core.packages.contents import PackageContents
from trtbuild.core.packages.name_table import NAMES_FILE
from trtbuild.core.packages.package_index import (
    PackageIndex,
    PackedProfile,
    PackedTarget,
    PackedTensor,
    PackedWeight,
    weight_path,
)
from trtbuild.core.recipes.record import Output
from trtbuild.core.values.element_types import ELEMENT_TYPES
from trtbuild.core.values.expressions import freeze


def package_index(contents: PackageContents, names: Output, quantized: Sequence[str] = ()) -> PackageIndex:
    """Return the index of a package whose engines are built.

    `names` is the file with the table of names. `quantized` are the quantized types in the engines' layer information."""
    files = {NAMES_FILE: names}
    plans: dict[str, dict[str, str]] = {}
    layers: dict[str, dict[str, str]] = {}
    for engine in contents.engines:
        if engine.plan is None or engine.layers is None:
            raise AssertionError("a package is built after its engines")
        path = f"engines/{engine.target}/{engine.partition}"
        files |= {f"{path}.plan": engine.plan, f"{path}.layers.json": engine.layers}
        plans.setdefault(engine.target, {})[engine.partition] = f"{path}.plan"
        layers.setdefault(engine.target, {})[engine.partition] = f"{path}.layers.json"
    for toolchain_partitions in contents.partitions_by_target.values():
        files |= {_program_path(contents, output): output for output in toolchain_partitions.programs.values()}
    weights = {slot: _weight(contents, slot) for slot in contents.needed_slots()}
    plugins = contents.packed_plugins()
    if plugins is not None and plugins.library is not None and contents.plugin_library is not None:
        files[plugins.library] = contents.plugin_library
    for slot, weight in weights.items():
        files[weight.path] = Output(contents.weights[slot].sha256, _size_bytes(weight))
    return PackageIndex(
        model=contents.model.name,
        inputs=tuple(_tensor(entry) for entry in contents.inputs()),
        outputs=tuple(_tensor(entry) for entry in contents.interface.outputs),
        output_tree=contents.interface.output_tree,
        dims=tuple(contents.dims()),
        profiles=tuple(_profile(contents, profile) for profile in contents.model.profiles),
        precision=contents.model.precision,
        targets={
            target.name: _target(contents, target, plans.get(target.name, {}), layers.get(target.name, {}))
            for target in contents.model.targets
        },
        reference=contents.model.reference,
        weights=weights,
        files=files,
        truncates_double=contents.model.partition.truncate_double,
        quantized=tuple(quantized),
        other_precisions=contents.model.precisions.names[1:],
        operators=contents.interface.operators,
        state=contents.interface.state,
        plugins=plugins,
    )


def _profile(contents: PackageContents, profile: Profile) -> PackedProfile:
    shapes = dict(profile.shapes)
    return PackedProfile(profile.name, tuple(shapes[entry.name] for entry in contents.model.inputs))


def _target(
    contents: PackageContents, target: Target, plans: Mapping[str, str], layers: Mapping[str, str]
) -> PackedTarget:
    toolchain_partitions = contents.partitions_by_target[target.name]
    return PackedTarget(
        name=target.name,
        sm=target.sm,
        sms=tuple(contents.sms[target.name]),
        toolchain=target.toolchain,
        version=contents.toolchains[target.name],
        version_compatible=contents.model.builder.version_compatible,
        exclude_lean_runtime=contents.model.builder.exclude_lean_runtime,
        compatibility=target.compatibility,
        platform=target.platform,
        partitions=toolchain_partitions.partitions,
        programs={graph: _program_path(contents, output) for graph, output in toolchain_partitions.programs.items()},
        engines=plans,
        layers=layers,
    )


def _program_path(contents: PackageContents, program: Output) -> str:
    return contents.model.source.graph.program_path(program.sha256)


def _weight(contents: PackageContents, slot: int) -> PackedWeight:
    weight = contents.weights[slot]
    return PackedWeight(contents.interface.slots[slot].name, weight.dtype, weight.shape, weight_path(weight.sha256))


def _tensor(entry: Mapping[str, Any]) -> PackedTensor:
    ends = entry.get("range")
    return PackedTensor(
        name=entry["name"],
        dtype=entry["dtype"],
        shape=tuple(freeze(size) for size in entry["shape"]),
        keyword=entry.get("keyword", False),
        range=None if ends is None else tuple(ends),
    )


def _size_bytes(weight: PackedWeight) -> int:
    return math.prod(weight.shape) * ELEMENT_TYPES[weight.dtype].itemsize
