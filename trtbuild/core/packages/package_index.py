"""A package's index as typed values. `package_reading` reads and checks them, `package_writing` writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtbuild.core.model.custom_operators import CustomOperator
from trtbuild.core.model.spec import ShapeRange
from trtbuild.core.model.state import StateTensor
from trtbuild.core.partition.partitions import Partitions
from trtbuild.core.recipes.record import Output
from trtbuild.core.values.expressions import Expression, expression_text
from trtbuild.core.values.numbers import has_numbers
from trtbuild.core.values.value_ranges import ValueRange

#: The format of ``index.json``.
SCHEMA = "trtbuild.package/1"
#: The format for a model that returns Python numbers. Versions of trtbuild that only know tensors refuse it.
SCHEMA_WITH_NUMBERS = "trtbuild.package/2"
#: The format for a model with state. Versions of trtbuild that keep no state between calls refuse it.
SCHEMA_WITH_STATE = "trtbuild.package/3"
#: The formats that this version reads.
SCHEMAS = (SCHEMA, SCHEMA_WITH_NUMBERS, SCHEMA_WITH_STATE)


def schema_for(output_tree: Any, *, has_state: bool) -> str:
    """The oldest format for an index with this output structure, and with state if `has_state`."""
    if has_state:
        return SCHEMA_WITH_STATE
    return SCHEMA_WITH_NUMBERS if has_numbers(output_tree) else SCHEMA


def weight_path(sha256: str) -> str:
    return f"weights/{sha256[:32]}"


def plugin_library_path(sha256: str) -> str:
    return f"plugins/{sha256[:32]}.so"


@dataclass(frozen=True)
class PackedPlugins:
    """The TensorRT plugins that the engines call: (name, version, namespace).

    `library` is the path of their library in the package, or None if they are in TensorRT's own library. `name` is the name
    of the library's file in the project."""

    plugins: tuple[tuple[str, str, str], ...]
    library: str | None = None
    name: str = ""

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"plugins": [list(plugin) for plugin in self.plugins]}
        return document if self.library is None else {**document, "library": self.library, "name": self.name}


@dataclass(frozen=True)
class PackedTensor:
    """An input or output of the model. The sizes in `shape` are expressions over symbols (see `PackedDim`).

    `range` is the range of random values for an input, or None if the manifest does not declare it."""

    name: str
    dtype: str
    shape: tuple[Expression, ...]
    keyword: bool = False
    range: ValueRange | None = None


class Tensors(tuple[PackedTensor, ...]):
    """The inputs or outputs of a package, with a signature as their `repr`.

    For example: ``(image: float32[batch, 3, height], *, scale: float32[batch, 2*height])``."""

    dims: Sequence[PackedDim]

    def __new__(cls, tensors: Iterable[PackedTensor], dims: Sequence[PackedDim]) -> Tensors:
        instance = super().__new__(cls, tensors)
        instance.dims = dims
        return instance

    def __repr__(self) -> str:
        positional = [self._text(tensor) for tensor in self if not tensor.keyword]
        keywords = [self._text(tensor) for tensor in self if tensor.keyword]
        return f"({', '.join([*positional, *(['*'] if keywords else []), *keywords])})"

    def _text(self, tensor: PackedTensor) -> str:
        return f"{tensor.name}: {tensor.dtype}[{', '.join(size_text(size, self.dims) for size in tensor.shape)}]"


@dataclass(frozen=True)
class PackedDim:
    """A dynamic dimension. In size expressions, the dim with number k is symbol k.

    `min` and `max` are the smallest and the largest size in all profiles. The value of the symbol is the size divided by
    `multiple_of`."""

    name: str
    min: int
    max: int
    multiple_of: int


def size_text(size: Expression, dims: Sequence[PackedDim]) -> str:
    """The text of a size with the names of the dims, for messages: ``2*height``."""
    return expression_text(size, [dim.name for dim in dims], [dim.multiple_of for dim in dims])


@dataclass(frozen=True)
class PackedProfile:
    """Profile k of a package, which is optimization profile k of each engine. `shapes` are in the order of the inputs."""

    name: str
    shapes: tuple[ShapeRange, ...]


@dataclass(frozen=True)
class PackedWeight:
    """A weight in the package: the file `path` has its values as row-major bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: str


@dataclass(frozen=True)
class PackedTarget:
    """The engines and programs for one target. `sms` are the GPU architectures for which its plans have code.

    `compatibility` is the manifest's field: whether the plans also run on other GPUs than those of the target.
    `version_compatible` is about later versions of TensorRT."""

    name: str
    sm: int
    sms: tuple[int, ...]
    toolchain: str
    version: str
    version_compatible: bool
    compatibility: str
    platform: str
    partitions: Partitions
    programs: Mapping[str, str]  # `Partition.graph` → path of the partition's program
    engines: Mapping[str, str]  # partition → path of its plan
    layers: Mapping[str, str]  # partition → path of its layer information
    exclude_lean_runtime: bool = False

    @property
    def runs_on_later_versions(self) -> bool:
        """Whether later versions of its toolchain can run the plans (`engine_libraries`, rules 2 and 3)."""
        return self.version_compatible and not self.exclude_lean_runtime


@dataclass(frozen=True)
class PackageIndex:
    """The index of a package. `output_tree` is the nested structure of the model's outputs, as the trace wrote it."""

    model: str
    inputs: tuple[PackedTensor, ...]
    outputs: tuple[PackedTensor, ...]
    output_tree: Any
    dims: tuple[PackedDim, ...]
    profiles: tuple[PackedProfile, ...]
    precision: str
    targets: Mapping[str, PackedTarget]
    reference: bool
    #: Slot → weight, for the weights that the package needs (`PackageContents.needed_slots`).
    weights: Mapping[int, PackedWeight]
    #: Path in the package → digest and size of the file.
    files: Mapping[str, Output]
    #: Whether the engines compute float64 values in float32.
    truncates_double: bool = False
    #: The quantized types in the networks that the engines were built from, in the order of
    #: `trtbuild.core.model.quantized_types.QUANTIZED_TYPES`.
    quantized: tuple[str, ...] = ()
    #: The types other than `precision` in which some modules compute.
    other_precisions: tuple[str, ...] = ()
    #: The operators from outside PyTorch that its programs call.
    operators: tuple[CustomOperator, ...] = ()
    #: The buffers that a call reads and writes. Programs take them as inputs after `inputs`. `weights` has their first
    #: values.
    state: tuple[StateTensor, ...] = ()
    #: The plugins that its engines call; None without plugins.
    plugins: PackedPlugins | None = None

    def operators_for(self, target: PackedTarget) -> tuple[CustomOperator, ...]:
        """The operators from outside PyTorch that the Torch partitions of `target` call."""
        if self.plugins is None:  # then no engine calls these operators
            return self.operators
        called = {name for partition in target.partitions.partitions for name in partition.reasons}
        return tuple(operator for operator in self.operators if operator.name in called)

    @property
    def schema(self) -> str:
        """The format of ``index.json``."""
        return schema_for(self.output_tree, has_state=bool(self.state))

    @property
    def reference_library(self) -> str:
        """The library that computes the reference program: onnxruntime for an ONNX source, otherwise PyTorch."""
        programs = [path for target in self.targets.values() for path in target.programs.values()]
        return "onnxruntime" if any(path.endswith(".onnx") for path in programs) else "PyTorch"

    @property
    def target_without_engines(self) -> PackedTarget | None:
        """A target whose programs compute the whole model without engines, or None if there is no such target.

        With a reference program, this is any target. Otherwise, it is a target with Torch partitions only."""
        for target in self.targets.values():
            partitions = target.partitions.partitions
            if self.reference or (partitions and all(partition.kind == "torch" for partition in partitions)):
                return target
        return None
