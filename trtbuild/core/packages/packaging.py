"""The contents of a package, its recipe and its index, as pure functions.

Rules
1. Names of inputs, outputs, dims and profiles come from the manifest. They belong to the package, not to an engine.
2. The recipe of a package has all its contents, but it names engines by their keys.
3. The index has the size and SHA-256 of every file, so that a loader can verify all files before it uses any.
4. A package with ``reference`` has the programs of all partitions and all weights, so it can run without engines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from trtbuild.core.engines.binding import Interface
from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.model.plugins import Plugin, plugins_of
from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Model, Profile, Target
from trtbuild.core.packages.package_index import (
    SCHEMA,
    PackageIndex,
    PackedDim,
    PackedPlugins,
    PackedProfile,
    PackedTarget,
    PackedTensor,
    PackedWeight,
    plugin_library_path,
    schema_for,
    weight_path,
)
from trtbuild.core.packages.package_writing import dim_to_json, shape_to_json
from trtbuild.core.partition.partitions import Partitions
from trtbuild.core.recipes.key_fields import settings_of
from trtbuild.core.recipes.keys import STEP_VERSIONS, truncated_part
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output
from trtbuild.core.values.element_types import ELEMENT_TYPES
from trtbuild.core.values.encoding import Shared, Value
from trtbuild.core.values.expressions import freeze

#: The file with the table of names (`name_table`).
NAMES_FILE = "names.json"


@dataclass(frozen=True)
class ToolchainPartitions:
    """The partitions of a model for one toolchain, and the programs of partitions that the package contains.

    The keys of `programs` are graph digests. It has the programs of the Torch partitions. With ``reference``, it has the
    programs of all partitions."""

    partitions: Partitions
    programs: Mapping[str, Output]


@dataclass(frozen=True)
class PackageEngine:
    """One engine of a package: its key, its plan and its layer information.

    The plan and the layer information are None until the engine is built."""

    partition: str
    target: str
    key: str
    plan: Output | None = None
    layers: Output | None = None


@dataclass(frozen=True)
class PackageContents:
    """The contents of a package: everything from which its index, its recipe and its files are made."""

    model: Model
    shapes: ShapePlan
    interface: Interface
    weights: Sequence[Weight]
    modules: Output
    partitions_by_target: Mapping[str, ToolchainPartitions]  # target name → the partitions of its toolchain
    engines: Sequence[PackageEngine]
    toolchains: Mapping[str, str]  # target name → exact version
    #: Graph digest → digest of the conversion's origins, which are the calls that its ONNX nodes come from.
    origins: Mapping[str, str]
    sms: Mapping[str, Sequence[int]]  # target name → the SMs for which its plans have code
    #: The library of the model's plugins, whether an engine calls one or not.
    plugin_library: Output | None = None

    def recipe(self) -> Recipe:
        """The package step's recipe."""
        parts: list[tuple[str, Value]] = [
            ("model", self.model.name),
            ("inputs", [dict(entry) for entry in self._inputs()]),
            ("outputs", [dict(entry) for entry in self.interface.outputs]),
            ("output tree", self.interface.output_tree),
            ("dims", [dim_to_json(dim) for dim in self._dims()]),
            ("profiles", [_profile_part(profile) for profile in self.model.profiles]),
            ("precision", self.model.precision),
            ("targets", self._targets()),
            ("partitions", self._partition_documents()),
            ("engines", {f"{engine.partition}@{engine.target}": engine.key for engine in self.engines}),
            ("weights", self._needed_weights()),
            ("modules", self.modules.sha256),
            ("origins", dict(self.origins)),
            ("reference", self.model.reference),
            *self._other_precisions_part(),
            *self._operators_part(),
            *self._state_part(),
            *self._plugins_part(),
            *truncated_part(self.model.partition.truncate_double),
        ]
        schema = schema_for(self.interface.output_tree, has_state=bool(self.interface.state))
        if schema != SCHEMA:  # left out otherwise, so that packages of the first format keep their keys
            parts.append(("format", schema))
        return Recipe("package", STEP_VERSIONS["package"], tuple(parts))

    def blobs(self) -> dict[str, str]:
        """The blobs of the package's programs and weights, and of its library of plugins.

        The result maps each digest to ``program``, ``weight`` or ``library``."""
        kinds = {
            output.sha256: "program"
            for toolchain_partitions in self.partitions_by_target.values()
            for output in toolchain_partitions.programs.values()
        }
        for entry in self._needed_weights().values():
            kinds[entry["sha256"]] = "weight"
        if self.packed_library is not None:
            kinds[self.packed_library.sha256] = "library"
        return kinds

    @property
    def packed_library(self) -> Output | None:
        """The library of plugins, if an engine calls a plugin."""
        return self.plugin_library if self._plugins() else None

    def _plugins(self) -> tuple[Plugin, ...]:
        """The plugins that engines call."""
        partitions = (p for each in self.partitions_by_target.values() for p in each.partitions.partitions)
        return plugins_of(self.model.plugins, (name for partition in partitions for name in partition.plugins))

    def _packed_plugins(self) -> PackedPlugins | None:
        plugins = self._plugins()
        if not plugins:
            return None
        names = tuple(sorted({(plugin.name, plugin.version, plugin.namespace) for plugin in plugins}))
        library = self.model.plugins.library if self.model.plugins is not None else None
        if library is None or self.plugin_library is None:
            return PackedPlugins(names)
        return PackedPlugins(names, plugin_library_path(self.plugin_library.sha256), library.rpartition("/")[2])

    def _plugins_part(self) -> list[tuple[str, Value]]:
        """The plugins that the index has, and the digest of their library; empty for a model without plugins."""
        packed = self._packed_plugins()
        if packed is None:
            return []
        library = None if self.packed_library is None else self.packed_library.sha256
        return [("plugins", {**packed.to_json(), "sha256": library})]

    def index(self, names: Output, quantized: Sequence[str] = ()) -> PackageIndex:
        """The package's index. All engines must be built; `names` is the file with the table of names of all targets.

        `quantized` are the quantized types of the engines' networks, which follow from the layer information."""
        files = {NAMES_FILE: names}
        plans: dict[str, dict[str, str]] = {}
        layers: dict[str, dict[str, str]] = {}
        for engine in self.engines:
            if engine.plan is None or engine.layers is None:
                raise AssertionError("a package is built after its engines")
            path = f"engines/{engine.target}/{engine.partition}"
            files |= {f"{path}.plan": engine.plan, f"{path}.layers.json": engine.layers}
            plans.setdefault(engine.target, {})[engine.partition] = f"{path}.plan"
            layers.setdefault(engine.target, {})[engine.partition] = f"{path}.layers.json"
        for toolchain_partitions in self.partitions_by_target.values():
            files |= {self._program_path(output): output for output in toolchain_partitions.programs.values()}
        weights = {slot: self._weight(slot) for slot in self._needed_slots()}
        plugins = self._packed_plugins()
        if plugins is not None and plugins.library is not None and self.plugin_library is not None:
            files[plugins.library] = self.plugin_library
        for slot, weight in weights.items():
            files[weight.path] = Output(self.weights[slot].sha256, _size_bytes(weight))
        return PackageIndex(
            model=self.model.name,
            inputs=tuple(_tensor(entry) for entry in self._inputs()),
            outputs=tuple(_tensor(entry) for entry in self.interface.outputs),
            output_tree=self.interface.output_tree,
            dims=tuple(self._dims()),
            profiles=tuple(self._profile(profile) for profile in self.model.profiles),
            precision=self.model.precision,
            targets={
                target.name: self._target(target, plans.get(target.name, {}), layers.get(target.name, {}))
                for target in self.model.targets
            },
            reference=self.model.reference,
            weights=weights,
            files=files,
            truncates_double=self.model.partition.truncate_double,
            quantized=tuple(quantized),
            other_precisions=self.model.precisions.names[1:],
            operators=self.interface.operators,
            state=self.interface.state,
            plugins=plugins,
        )

    def _inputs(self) -> list[dict[str, Any]]:
        return [
            {
                **dict(traced),
                "name": declared.name,
                "keyword": declared.keyword,
                # left out if there is no range, so that packages without ranges keep their keys
                **({} if declared.range is None else {"range": list(declared.range)}),
            }
            for declared, traced in zip(self.model.inputs, self.interface.inputs, strict=True)
        ]

    def _other_precisions_part(self) -> list[tuple[str, Value]]:
        """The types of modules that do not compute in `precision`, which the index has; empty without such modules."""
        others = self.model.precisions.names[1:]
        return [("other precisions", list(others))] if others else []

    def _operators_part(self) -> list[tuple[str, Value]]:
        """The operators from outside PyTorch, which the index has; empty for a model without such operators."""
        operators = self.interface.operators
        return [("operators", [operator.to_json() for operator in operators])] if operators else []

    def _state_part(self) -> list[tuple[str, Value]]:
        """The state, which the index has; empty for a model without state."""
        state = self.interface.state
        return [("state", [entry.to_json() for entry in state])] if state else []

    def _dims(self) -> list[PackedDim]:
        return [PackedDim(symbol.name, symbol.min, symbol.max, symbol.multiple_of) for symbol in self.shapes.symbols]

    def _profile(self, profile: Profile) -> PackedProfile:
        shapes = dict(profile.shapes)
        return PackedProfile(profile.name, tuple(shapes[entry.name] for entry in self.model.inputs))

    def _target(self, target: Target, plans: Mapping[str, str], layers: Mapping[str, str]) -> PackedTarget:
        toolchain_partitions = self.partitions_by_target[target.name]
        return PackedTarget(
            name=target.name,
            sm=target.sm,
            sms=tuple(self.sms[target.name]),
            toolchain=target.toolchain,
            version=self.toolchains[target.name],
            version_compatible=self.model.builder.version_compatible,
            exclude_lean_runtime=self.model.builder.exclude_lean_runtime,
            compatibility=target.compatibility,
            platform=target.platform,
            partitions=toolchain_partitions.partitions,
            programs={graph: self._program_path(output) for graph, output in toolchain_partitions.programs.items()},
            engines=plans,
            layers=layers,
        )

    def _program_path(self, program: Output) -> str:
        return self.model.source.graph.program_path(program.sha256)

    def _weight(self, slot: int) -> PackedWeight:
        weight = self.weights[slot]
        return PackedWeight(self.interface.slots[slot].name, weight.dtype, weight.shape, weight_path(weight.sha256))

    def _targets(self) -> dict[str, Shared]:
        builder = self.model.builder
        lean = (builder.version_compatible, builder.exclude_lean_runtime)
        return {
            target.name: _target_part(
                target, tuple(map(type, vars(target).values())), self.toolchains[target.name], sms, *lean
            )
            for target in self.model.targets
            for sms in (tuple(self.sms[target.name]),)
        }

    def _partition_documents(self) -> dict[str, Value]:
        """The document of each target's partitions. Targets of one toolchain share one encoded document."""
        documents: dict[int, Shared] = {}
        return {
            name: documents[id(toolchain_partitions)]
            if id(toolchain_partitions) in documents
            else documents.setdefault(id(toolchain_partitions), Shared(_partitions_document(toolchain_partitions)))
            for name, toolchain_partitions in self.partitions_by_target.items()
        }

    def _needed_weights(self) -> dict[str, dict[str, Any]]:
        """Slot → name, dtype, shape and digest of each weight that the package needs."""
        return {
            str(slot): {
                "name": self.interface.slots[slot].name,
                "dtype": self.weights[slot].dtype,
                "shape": list(self.weights[slot].shape),
                "sha256": self.weights[slot].sha256,
            }
            for slot in self._needed_slots()
        }

    def _needed_slots(self) -> list[int]:
        """The slots of the weights that the package needs, in their order.

        They are the weights of Torch partitions, all weights that are inputs of a partition or outputs of the model, and
        the first values of the state. With ``reference``, the package also needs the weights of TensorRT partitions."""
        slots = {entry.slot for entry in self.interface.state}
        for toolchain_partitions in {
            id(toolchain_partitions): toolchain_partitions
            for toolchain_partitions in self.partitions_by_target.values()
        }.values():
            for partition in toolchain_partitions.partitions.partitions:
                if partition.kind == "torch" or self.model.reference:
                    slots.update(partition.weights)
                references = [source for source, _ in partition.inputs]
                slots.update(int(ref[7:]) for ref in references if ref.startswith("weight:"))
            slots.update(int(ref[7:]) for ref in toolchain_partitions.partitions.outputs if ref.startswith("weight:"))
        return sorted(slots)


@lru_cache(maxsize=1024)  # the packages of a project have few different targets
def _target_part(
    target: Target,
    _: tuple[type, ...],  # the types of the target's fields are compared, too, because 1 == True
    version: str,
    sms: tuple[int, ...],
    version_compatible: bool,
    exclude_lean_runtime: bool,
) -> Shared:
    """A target in the recipe."""
    part = {**settings_of(target), "version": version, "sms": list(sms), "version_compatible": version_compatible}
    # left out if it is False, so that packages from before this field keep their keys
    return Shared({**part, "exclude_lean_runtime": True} if exclude_lean_runtime else part)


def _partitions_document(toolchain_partitions: ToolchainPartitions) -> dict[str, Any]:
    return {
        **toolchain_partitions.partitions.to_json(),
        "programs": {graph: output.sha256 for graph, output in toolchain_partitions.programs.items()},
    }


def name_table(
    toolchain_partitions: ToolchainPartitions,
    modules: Sequence[Sequence[str]],
    origins: Mapping[str, Sequence[Sequence[Any]]],
) -> dict[str, dict[str, list[str]]]:
    """For each TensorRT partition: ONNX node name → module path and operator.

    `modules` has an entry for each call of the lowered program: first its module path and its operator. `origins` has pairs
    for each graph digest: the name of an ONNX node, and the number of the partition's call that it comes from."""
    table = {}
    for partition in toolchain_partitions.partitions.partitions:
        if partition.kind != "tensorrt":
            continue
        names = {}
        for node, call in origins.get(partition.graph, ()):
            lowered_call = partition.calls[call]
            if lowered_call >= 0:
                names[node] = list(modules[lowered_call][:2])
        table[partition.name] = names
    return table


def _tensor(entry: Mapping[str, Any]) -> PackedTensor:
    """An input or output of the package, from its entry in the recipe or the interface."""
    ends = entry.get("range")
    return PackedTensor(
        name=entry["name"],
        dtype=entry["dtype"],
        shape=tuple(freeze(size) for size in entry["shape"]),
        keyword=entry.get("keyword", False),
        range=None if ends is None else tuple(ends),
    )


def _profile_part(profile: Profile) -> dict[str, Any]:
    """A profile in the recipe."""
    return {"name": profile.name, "shapes": {name: shape_to_json(shape) for name, shape in profile.shapes}}


def _size_bytes(weight: PackedWeight) -> int:
    """The size of a weight's file in bytes."""
    return math.prod(weight.shape) * ELEMENT_TYPES[weight.dtype].itemsize
