"""A package's index as typed values: what a loader may rely on. They are read in `core.packages.package_reading`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtbuild.core.model.spec import ShapeRange
from trtbuild.core.partition.partitions import Partitions
from trtbuild.core.recipes.record import Output
from trtbuild.core.values.expressions import Expression, spelled
from trtbuild.core.values.value_ranges import ValueRange


@dataclass(frozen=True)
class PackedTensor:
    """An input or output of the model. The sizes in `shape` are expressions over the dims, in the graph's units.
    `range` are the values that random inputs are drawn from, None where that was not said."""

    name: str
    dtype: str
    shape: tuple[Expression, ...]
    keyword: bool = False
    range: ValueRange | None = None


class Tensors(tuple[PackedTensor, ...]):
    """The inputs or outputs of a package. Shown, they are a signature with the names of the dims:
    ``(image: float32[batch, 3, height], *, scale: float32[batch, 2*height])``."""

    dims: Sequence[PackedDim]

    def __new__(cls, tensors: Iterable[PackedTensor], dims: Sequence[PackedDim]) -> Tensors:
        made = super().__new__(cls, tensors)
        made.dims = dims
        return made

    def __repr__(self) -> str:
        positional = [self._shown(tensor) for tensor in self if not tensor.keyword]
        named = [self._shown(tensor) for tensor in self if tensor.keyword]
        return f"({', '.join([*positional, *(['*'] if named else []), *named])})"

    def _shown(self, tensor: PackedTensor) -> str:
        return f"{tensor.name}: {tensor.dtype}[{', '.join(in_dims(size, self.dims) for size in tensor.shape)}]"


@dataclass(frozen=True)
class PackedDim:
    """A dynamic dim; number k is symbol k of all expressions. `min` and `max` are sizes (over all profiles), and the
    graph counts in units of `multiple_of`."""

    name: str
    min: int
    max: int
    multiple_of: int


def in_dims(size: Expression, dims: Sequence[PackedDim]) -> str:
    """A size for a person, in whole sizes of the dims: ``2*height``."""
    return spelled(size, [dim.name for dim in dims], [dim.multiple_of for dim in dims])


@dataclass(frozen=True)
class PackedProfile:
    """Number k of a package is optimization profile k of each of its engines. `shapes` are in the order of the inputs."""

    name: str
    shapes: tuple[ShapeRange, ...]


@dataclass(frozen=True)
class PackedWeight:
    """A weight that the package holds: logical row-major bytes in the file `path`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: str


@dataclass(frozen=True)
class PackedTarget:
    """What was built for one target. `sms` are those that its plans hold code for."""

    name: str
    sm: int
    sms: tuple[int, ...]
    toolchain: str
    version: str
    version_compatible: bool
    compatibility: str
    platform: str
    partitions: Partitions
    programs: Mapping[str, str]  # graph digest → path
    engines: Mapping[str, str]  # partition → path of its plan
    layers: Mapping[str, str]  # partition → path of its layer information
    exclude_lean_runtime: bool = False

    @property
    def runs_on_later(self) -> bool:
        """Whether later versions of its toolchain run the plans. One that leaves its lean runtime out wants that of the
        version that built it beside it (``IRuntime.load_runtime``), which trtbuild does not load."""
        return self.version_compatible and not self.exclude_lean_runtime


@dataclass(frozen=True)
class PackageIndex:
    """The index of a package. `output_tree` is the JSON that the trace wrote of the model's output structure."""

    model: str
    inputs: tuple[PackedTensor, ...]
    outputs: tuple[PackedTensor, ...]
    output_tree: Any
    dims: tuple[PackedDim, ...]
    profiles: tuple[PackedProfile, ...]
    precision: str
    targets: Mapping[str, PackedTarget]
    reference: bool
    weights: Mapping[int, PackedWeight]
    files: Mapping[str, Output]

    @property
    def computed_by(self) -> str:
        """What computes the reference program, for a person: onnxruntime of a model that came as ONNX, else PyTorch."""
        programs = [path for target in self.targets.values() for path in target.programs.values()]
        return "onnxruntime" if any(path.endswith(".onnx") for path in programs) else "PyTorch"

    @property
    def without_engines(self) -> PackedTarget | None:
        """A target whose programs compute all of the model: any where there is a reference program, for all have one
        model's, cut in one way or another; else one of which PyTorch computes every partition. None where there is none."""
        for target in self.targets.values():
            parts = target.partitions.partitions
            if self.reference or (parts and all(part.kind == "torch" for part in parts)):
                return target
        return None
