"""The contents of a package, as values.

Rules
1. Names of inputs, dims and profiles come from the manifest, those of outputs from the trace. They belong to the
   package, not to an engine.
2. A package with ``reference`` has the programs and the weights of all partitions, so it can run without engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    """The partitions of a model for one toolchain, and the programs that the package contains for these partitions.

    The keys of `programs` are graph digests. The values are the programs of the Torch partitions. With ``reference``, they
    are the programs of all partitions."""

    partitions: Partitions
    programs: Mapping[str, Output]


@dataclass(frozen=True, slots=True)
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
    modules: Output  # a JSON list: the module path and the operator of each call of the lowered program
    partitions_by_target: Mapping[str, ToolchainPartitions]  # target name → the partitions of its toolchain
    engines: Sequence[PackageEngine]
    toolchains: Mapping[str, str]  # target name → exact version
    #: Graph digest → digest of the conversion's origins, which are the calls that its ONNX nodes come from.
    origins: Mapping[str, str]
    sms: Mapping[str, Sequence[int]]  # target name → the SMs for which its plans have code
    #: The library of the model's plugins, whether an engine calls one or not.
    plugin_library: Output | None = None

    def blobs(self) -> dict[str, str]:
        """The blobs of the package's programs and weights, and of its library of plugins.

        The result maps each digest to ``program``, ``weight`` or ``library``."""
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
        """The plugins that engines call, as the index has them; None if engines call no plugin."""
        plugins = self._plugins()
        if not plugins:
            return None
        names = tuple(sorted({(plugin.name, plugin.version, plugin.namespace) for plugin in plugins}))
        library = self.model.plugins.library if self.model.plugins is not None else None
        if library is None or self.plugin_library is None:
            return PackedPlugins(names)
        return PackedPlugins(names, plugin_library_path(self.plugin_library.sha256), library.rpartition("/")[2])

    def inputs(self) -> list[dict[str, Any]]:
        """The JSON of each input: its traced type, its declared name and range, and whether it is a keyword."""
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

    def dims(self) -> list[PackedDim]:
        """The dynamic dims, in the order of their symbols."""
        return [PackedDim(symbol.name, symbol.min, symbol.max, symbol.multiple_of) for symbol in self.shapes.symbols]

    def needed_weights(self) -> dict[str, dict[str, Any]]:
        """Slot → name, dtype, shape and digest of each weight that the package needs."""
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
        """The slots of the weights that the package needs, in ascending order.

        The package needs `Partition.weights` of Torch partitions, the first values of the state, the weights that are
        outputs of the model, and the weights in `Partition.inputs`. With ``reference``, it also needs `Partition.weights`
        of TensorRT partitions."""
        slots = {entry.slot for entry in self.interface.state}
        # targets of one toolchain share an object, which is read once
        distinct = {id(shared): shared for shared in self.partitions_by_target.values()}
        for toolchain_partitions in distinct.values():
            for partition in toolchain_partitions.partitions.partitions:
                if partition.kind == "torch" or self.model.reference:
                    slots.update(partition.weights)
                slots.update(_weight_slots(source for source, _ in partition.inputs))
            slots.update(_weight_slots(toolchain_partitions.partitions.outputs))
        return sorted(slots)


def _weight_slots(values: Iterable[str]) -> Iterator[int]:
    """The slots of the weights among `values`: ``weight:k`` names slot k (`trtbuild.core.partition.partitions`)."""
    return (int(name.removeprefix("weight:")) for name in values if name.startswith("weight:"))
