"""Small traced, lowered and converted models for verifications. A dictionary replaces the store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx
import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram, export

from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.model.verification import Point, tolerances
from trtbuild.core.partition.partitions import Partition, Partitions, TensorType
from trtbuild.stages.convert.conversion import convert
from trtbuild.stages.lower.run import lower
from trtbuild.stages.program.functional import Program, functional
from trtbuild.stages.program.text import module_paths, program_text
from trtbuild.stages.program.translations import decomposition_table
from trtbuild.stages.verify.job import VerifyJob

#: Sizes of the dynamic dim, if a model has one.
SIZES = (1, 3, 6)


class FunctionModule(nn.Module):
    """A module that calls a function with itself and its inputs."""

    def __init__(self, function: Callable[..., Any], **members: Any) -> None:
        super().__init__()
        self.function = function
        for name, member in members.items():
            setattr(self, name, member)
        self.eval()

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


class Blobs(dict[str, bytes]):
    """Blobs by their SHA-256."""

    def keep(self, data: bytes) -> str:
        """Store a blob and return its digest."""
        digest = hashlib.sha256(data).hexdigest()
        self[digest] = data
        return digest


@dataclass
class ConvertedModel:
    """A model, in most tests as one partition, and its verification job.

    `graph` is the SHA-256 of the lowered program's text.
    """

    job: VerifyJob
    blobs: Blobs
    program: Program
    lowered: Program
    graph: str
    partitions: Partitions = field(init=False)

    def __post_init__(self) -> None:
        self.partitions = Partitions.from_bytes(self.blobs[self.job.partitions])

    def read(self, sha256: str) -> bytes:
        return self.blobs[sha256]

    def altered(self, change: Callable[[onnx.GraphProto], None]) -> ConvertedModel:
        """Return the same model, with a changed ONNX model."""
        model = onnx.ModelProto.FromString(self.blobs[self.job.onnx[self.graph]])
        before = model.SerializeToString()
        change(model.graph)
        assert model.SerializeToString() != before
        return replace_job(self, onnx={self.graph: self.blobs.keep(model.SerializeToString())})


def replace_job(converted: ConvertedModel, **changes: Any) -> ConvertedModel:
    """Return the same model and blobs, with changed fields of the job."""
    return ConvertedModel(
        replace(converted.job, **changes), converted.blobs, converted.program, converted.lowered, converted.graph
    )


#: The shape and dtype of each input. A size ``"b"`` is dynamic.
Inputs = Sequence[tuple[Sequence[int | str], str]]


def convert_module(module: nn.Module, inputs: Inputs, precision: Any = "float32", opset: int = 20) -> ConvertedModel:
    """Trace, lower and convert a model as one partition."""
    program, slots = functional(_export(module, inputs))
    lowered = lower(program, precision, decomposition_table())
    converted = convert(lowered, opset)
    graph = hashlib.sha256(program_text(lowered).encode()).hexdigest()
    part = Partition(
        "model",
        "tensorrt",
        graph,
        tuple(range(len(slots))),
        tuple((f"input:{k}", _type_of(node)) for k, node in enumerate(lowered.input_nodes)),
        tuple(map(_type_of, lowered.output_nodes)),
        tuple(range(sum(node.op == "call_function" for node in lowered.graph.nodes))),
    )
    partitions = Partitions((part,), tuple(f"model:{k}" for k in range(len(part.outputs))))
    is_dynamic = any("b" in shape for shape, _ in inputs)
    sizes = [(size,) for size in SIZES] if is_dynamic else [()]
    points = tuple(Point(0, f"random {k}", size, seed=100 + k, zeros=k == 2) for k, size in enumerate(sizes))
    blobs = Blobs()
    job = VerifyJob(
        program=blobs.keep(program.to_bytes()),
        modules=blobs.keep(json.dumps(module_paths(lowered)).encode()),
        partitions=blobs.keep(partitions.to_bytes()),
        programs={graph: blobs.keep(lowered.to_bytes())},
        onnx={graph: blobs.keep(converted.model)},
        origins={graph: blobs.keep(json.dumps(converted.origins).encode())},
        weights=tuple(_stored_weight(module, slot.name, blobs) for slot in slots),
        inputs=tuple((f"x{k}", dtype) for k, (_, dtype) in enumerate(inputs)),
        points=points,
        shapes=tuple(
            tuple(tuple(point.sizes[0] if size == "b" else int(size) for size in shape) for shape, _ in inputs)
            for point in points
        ),
        tolerances=tolerances("onnxruntime"),
    )
    return ConvertedModel(job, blobs, program, lowered, graph)


def _export(module: nn.Module, inputs: Inputs) -> ExportedProgram:
    torch.manual_seed(0)
    example = tuple(
        torch.zeros([4 if size == "b" else size for size in shape]).to(getattr(torch, dtype)) for shape, dtype in inputs
    )
    dim = Dim("b", min=1, max=8)
    shapes = tuple({axis: dim for axis, size in enumerate(shape) if size == "b"} for shape, _ in inputs)
    # torch.export counts *inputs as one argument
    dynamic_shapes = (shapes,) if isinstance(module, FunctionModule) else shapes
    return export(module, example, dynamic_shapes=dynamic_shapes).run_decompositions({})


def _type_of(node: torch.fx.Node) -> TensorType:
    value = node.meta["val"]
    shape = tuple(size if isinstance(size, int) else ("sym", 0) for size in value.shape)
    return TensorType(str(value.dtype).removeprefix("torch."), shape)


def _stored_weight(module: nn.Module, name: str, blobs: Blobs) -> Weight:
    """Store a parameter or a buffer in `blobs`."""
    value = {**dict(module.named_parameters()), **dict(module.named_buffers())}[name].detach().contiguous()
    data = value.reshape(-1).view(torch.uint8).numpy().tobytes()
    return Weight(str(value.dtype).removeprefix("torch."), tuple(value.shape), blobs.keep(data))


@pytest.fixture(scope="session")
def mlp() -> ConvertedModel:
    torch.manual_seed(0)
    return convert_module(
        nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).eval(), [(("b", 8), "float32")]
    )
