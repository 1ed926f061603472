"""The contents of a package, as values.

Rules
1. Names of inputs, dims and profiles come from the manifest, and names of outputs from the trace. The package has these
   names, and engines do not.
2. A package with ``reference`` has the programs and the weights of all partitions, so it can run without engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trtbuild.core.engines.binding import Interface
from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.model.plugins import Plugin, plugins_of
from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Model
from trtbuild.core.packages.package_index import PackedDim, PackedPlugins, plugin_library_path
from trtbuild.core.partition.partitions import Partitions
from trtbuild.core.recipes.record import Output


@dataclass(frozen=True)
class ToolchainPartitions:
    """The partitions of a model for one toolchain.

    `programs` maps `Partition.graph` to the file of the partition's program in the package: for Torch partitions, and with
    ``reference`` for all partitions."""

    partitions: Partitions
    programs: Mapping[str, Output]


@dataclass(frozen=True, slots=True)
class PackageEngine:
    """One engine of a package. Its plan (the serialized engine) and layer information are None until it is built."""

    partition: str
    target: str
    key: str
    plan: Output | None = None
    layers: Output | None = None


@dataclass(frozen=True)
class PackageContents:
    """Everything from which a package's index, recipe and files are made."""

    model: Model
    shapes: ShapePlan
    interface: Interface
    weights: Sequence[Weight]
    modules: Output  # a JSON list: the module path and the operator of each call of the lowered program
    partitions_by_target: Mapping[str, ToolchainPartitions]  # target name → the partitions of its toolchain
    engines: Sequence[PackageEngine]
    toolchains: Mapping[str, str]  # target name → exact version
    #: `Partition.graph` → digest of the file that maps each ONNX node of the partition to the call that it comes from.
    origins: Mapping[str, str]
    sms: Mapping[str, Sequence[int]]  # target name → the SMs for which its plans have code
    #: Target name → the entries of its origins that differ from `origins`. Two toolchains may convert one partition for
    #: different opsets. Then a node of one model may come from another call than the node with its name in the other model.
    other_origins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: The library of the model's plugins, even if no engine calls a plugin.
    plugin_library: Output | None = None

    def blobs(self) -> dict[str, str]:
        """The stored files of the package, except those of its engines: digest → ``program``, ``weight`` or ``library``."""
        kinds = {
            output.sha256: "program"
            for toolchain_partitions in self.partitions_by_target.values()
            for output in toolchain_partitions.programs.values()
        }
        for entry in self.needed_weights().values():
            kinds[entry["sha256"]] = "weight"
        if self.packed_library is not None:
            kinds[self.packed_library.sha256] = "library"
        return kinds

    def origins_of(self, target: str) -> dict[str, str]:
        """The `origins` of the conversions from which the engines of a target are made."""
        return {**self.origins, **self.other_origins.get(target, {})}

    def plans(self) -> dict[str, str]:
        """``partition@target`` → the digest of the plan, for each engine that is built."""
        return {
            f"{engine.partition}@{engine.target}": engine.plan.sha256
            for engine in self.engines
            if engine.plan is not None
        }

    @property
    def packed_library(self) -> Output | None:
        """The library of plugins, if an engine calls a plugin."""
        return self.plugin_library if self._plugins() else None

    def _plugins(self) -> tuple[Plugin, ...]:
        """The plugins that engines call."""
        names = (
            name
            for toolchain_partitions in self.partitions_by_target.values()
            for partition in toolchain_partitions.partitions.partitions
            for name in partition.plugins
        )
        return plugins_of(self.model.plugins, names)

    def packed_plugins(self) -> PackedPlugins | None:
        """The plugins that engines call, for the index; None if engines call no plugin."""
        plugins = self._plugins()
        if not plugins:
            return None
        names = tuple(sorted({(plugin.name, plugin.version, plugin.namespace) for plugin in plugins}))
        library = self.model.plugins.library if self.model.plugins is not None else None
        if library is None or self.plugin_library is None:
            return PackedPlugins(names)
        return PackedPlugins(names, plugin_library_path(self.plugin_library.sha256), library.rpartition("/")[2])

    def inputs(self) -> list[dict[str, Any]]:
        """The JSON of each input: its traced type, its declared name and range, and whether it is passed by name."""
        return [
            {
                **dict(traced),
                "name": declared.name,
                "keyword": declared.keyword,
                # left out if there is no range, so that the keys of older packages stay valid
                **({} if declared.range is None else {"range": list(declared.range)}),
            }
            for declared, traced in zip(self.model.inputs, self.interface.inputs, strict=True)
        ]

    def dims(self) -> list[PackedDim]:
        """The dynamic dims, in the order of their symbols."""
        return [PackedDim(symbol.name, symbol.min, symbol.max, symbol.multiple_of) for symbol in self.shapes.symbols]

    def needed_weights(self) -> dict[str, dict[str, Any]]:
        """The weights that the package needs: number of the weight → name, dtype, shape and digest."""
        return {
            str(slot): {
                "name": self.interface.slots[slot].name,
                "dtype": self.weights[slot].dtype,
                "shape": list(self.weights[slot].shape),
                "sha256": self.weights[slot].sha256,
            }
            for slot in self.needed_slots()
        }

    def needed_slots(self) -> list[int]:
        """The numbers (slots) of the weights that the package needs, in ascending order.

        Engines contain their weights. So the package needs the weights of Torch partitions, those that a partition takes as
        inputs, those that the model returns, and the first values of the state. With ``reference``, it also needs the
        weights of TensorRT partitions."""
        slots = {entry.slot for entry in self.interface.state}
        # Targets of one toolchain share an object. Each object is read once.
        distinct = {id(shared): shared for shared in self.partitions_by_target.values()}
        for toolchain_partitions in distinct.values():
            for partition in toolchain_partitions.partitions.partitions:
                if partition.kind == "torch" or self.model.reference:
                    slots.update(partition.weights)
                slots.update(_weight_slots(source for source, _ in partition.inputs))
            slots.update(_weight_slots(toolchain_partitions.partitions.outputs))
        return sorted(slots)


def _weight_slots(values: Iterable[str]) -> Iterator[int]:
    """The slots of the weights among the names `values`: ``weight:k`` is slot k (`trtbuild.core.partition.partitions`)."""
    return (int(name.removeprefix("weight:")) for name in values if name.startswith("weight:"))
