"""Run the partitions of a model in order, in PyTorch or with another runner.

A value is deleted after its last use. So the memory contains the model's weights, and only those values that are still
needed.

PyTorch leaves some orders open: that of equal numbers in `sort` and `topk`, and that of the results of ``topk`` with
``sorted=False``. ONNX's TopK gives the lower index first, and so do onnxruntime and TensorRT (measured with 8.6 on an
H200). So programs run with the same order here (`OrderedInterpreter`). This changes only what PyTorch leaves open: the
values are those of PyTorch, and a wrong index is still found. The order applies to the traced program, too, because a
partition that stays in PyTorch must give the results of the traced program.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.model.verification import Point, Runner
from trtbuild.core.partition.partitions import Partition, Partitions
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten

#: Returns the bytes of a blob, by its SHA-256.
ReadBlob = Callable[[str], bytes]


class NotRunnable(Exception):
    """A partition cannot run here. This does not mean that it is wrong. The text has the reason."""


class PartFailed(Exception):
    """A partition can run here, but has failed. The text has the reason."""


class PartRunner(Protocol):
    """Runs partitions for the comparison with PyTorch."""

    name: Runner

    def __call__(self, part: Partition, inputs: Sequence[torch.Tensor], point: Point) -> Sequence[torch.Tensor]:
        """Return the results of a partition, as CPU tensors. Raises NotRunnable, PartFailed."""


class Weights:
    """Slot (the number of a weight in the model) → the weight. A weight is read at its first use, equal weights once."""

    def __init__(self, weights: Sequence[Weight], read: ReadBlob) -> None:
        self._weights = weights
        self._read = read
        self._tensors: dict[Weight, torch.Tensor] = {}

    def __len__(self) -> int:
        return len(self._weights)

    def __getitem__(self, slot: int) -> torch.Tensor:
        weight = self._weights[slot]
        if weight not in self._tensors:
            dtype: torch.dtype = getattr(torch, weight.dtype)
            self._tensors[weight] = _tensor_of(self._read(weight.sha256), dtype).reshape(weight.shape)
        return self._tensors[weight]


def _tensor_of(data: bytes, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor in the memory of `data`, because a copy would need twice the memory of a large weight.

    No program writes to the tensor, because all programs are functional."""
    if not data:
        return torch.empty(0, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable", category=UserWarning)
        return torch.frombuffer(data, dtype=dtype)


def placeholder_values(
    program: Program, weights: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the arguments of a program's graph module, in the order of its placeholders."""
    constants = program.constants
    values = dict(zip(program.weight_nodes, weights, strict=True)) | dict(zip(program.input_nodes, inputs, strict=True))
    return [values[node] if node in values else constants[node.name] for node in program.placeholders]


class OrderedInterpreter(torch.fx.Interpreter):
    """Runs a graph module and its nested graphs. `sort` and `topk` give sorted values, and of equal values the lower index
    first."""

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        return OrderedInterpreter(value).run if isinstance(value, torch.fx.GraphModule) else value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().call_function(_ORDERED.get(target, target), args, kwargs)


def _sort(values: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
    return _aten.sort.stable(values, stable=True, dim=dim, descending=descending)


def _argsort(values: torch.Tensor, dim: int = -1, descending: bool = False) -> torch.Tensor:
    indices: torch.Tensor = _sort(values, dim, descending)[1]
    return indices


def _topk(values: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if not values.dim():
        return _aten.topk.default(values, k, dim, largest, sorted)
    return tuple(result.narrow(dim, 0, k).contiguous() for result in _sort(values, dim, largest))


#: Operator of PyTorch → the function that gives its results in the order of ONNX.
_ORDERED: Mapping[Any, Callable[..., Any]] = {
    _aten.sort.default: _sort,
    _aten.argsort.default: _argsort,
    _aten.topk.default: _topk,
}


class TorchReference:
    """Runs a model's programs in PyTorch. `programs` maps the digest of a program's text (`Partition.graph`) to
    the SHA-256 of the stored program."""

    def __init__(self, programs: Mapping[str, str], weights: Weights, read: ReadBlob) -> None:
        self._programs = programs
        self._weights = weights
        self._read = read
        self._loaded: dict[str, Program] = {}

    def program(self, part: Partition) -> Program:
        """Return the program of a partition. Equal partitions share one program."""
        if part.graph not in self._loaded:
            self._loaded[part.graph] = Program.from_bytes(self._read(self._programs[part.graph]))
        return self._loaded[part.graph]

    def weights(self, part: Partition) -> list[torch.Tensor]:
        return [self._weights[slot] for slot in part.weights]

    def run_part(self, part: Partition, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self.run_program(self.program(part), self.weights(part), inputs)

    @staticmethod
    def run_program(
        program: Program, weights: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        with torch.no_grad():
            values = placeholder_values(program, weights, inputs)
            return list(OrderedInterpreter(program.exported.graph_module).run(*values))


class Values:
    """The inputs of a model, and the results of its partitions. Each value is stored until its last use."""

    def __init__(self, partitions: Partitions, weights: Weights, inputs: Sequence[torch.Tensor]) -> None:
        self._weights = weights
        self._values = {f"input:{k}": value for k, value in enumerate(inputs)}
        self._last_readers: dict[str, int] = {}
        for number, part in enumerate(partitions.partitions):
            self._last_readers.update(dict.fromkeys((source for source, _ in part.inputs), number))
        self._last_readers.update(dict.fromkeys(partitions.outputs, len(partitions.partitions)))

    def __getitem__(self, source: str) -> torch.Tensor:
        if source.startswith("weight:"):
            return self._weights[int(source.removeprefix("weight:"))]
        return self._values[source]

    def inputs_of(self, part: Partition) -> list[torch.Tensor]:
        return [self[source] for source, _ in part.inputs]

    def put(self, number: int, part: Partition, results: Sequence[torch.Tensor]) -> None:
        """Store the results of partition `number`, and delete the values without a later use."""
        self._values.update((f"{part.name}:{k}", value) for k, value in enumerate(results))
        for name in [name for name in self._values if self._last_readers.get(name, -1) <= number]:
            del self._values[name]
