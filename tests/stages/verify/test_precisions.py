"""The precisions in which the outputs of a model are computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.verify.conftest import ConvertedModel, FunctionModule, convert_module
from trtbuild.core.model.spec import Precision
from trtbuild.core.partition.partitions import Partition, Partitions, TensorType
from trtbuild.stages.program.functional import functional
from trtbuild.stages.verify import precisions
from trtbuild.stages.verify.onnx_models.onnx_precisions import onnx_precisions

HALF, BFLOAT = torch.float16, torch.bfloat16


def model_of(function: Any, *dtypes: str, **members: Any) -> ConvertedModel:
    return convert_module(FunctionModule(function, **members), [((2, 4), dtype) for dtype in dtypes or ("float32",)])


def output_precisions(model: ConvertedModel) -> list[Precision]:
    """Return the precisions of the program's outputs. Fails if the ONNX model gives other precisions."""
    by_program = precisions.output_precisions(model.lowered)
    inputs = [precisions.precision_of_dtype(dtype) for _, dtype in model.job.inputs]
    assert onnx_precisions(model.blobs[model.job.onnx[model.graph]], inputs, len(by_program)) == by_program
    return by_program


@pytest.mark.parametrize(
    ("function", "dtypes", "expected"),
    [
        (lambda m, x: x + 1, ("float32",), ["float32"]),
        (lambda m, x: x + 1, ("float16",), ["float16"]),
        # an input in float16 has at most the precision of float16
        (lambda m, x: x.float() + 1, ("float16",), ["float16"]),
        (lambda m, x: (x.to(HALF) * 2).float() + 1, ("float32",), ["float16"]),
        (lambda m, x: (x.to(HALF) * 2).float() + x.to(BFLOAT).float(), ("float32",), ["bfloat16"]),
        (lambda m, x, y: (x + 1, y.to(HALF) * 2, x * 2), ("float32", "float32"), ["float32", "float16", "float32"]),
        (lambda m, x, y: torch.where(y > 0, x, -x), ("float32", "float16"), ["float16"]),
        (lambda m, x, y: x + y, ("float32", "int64"), ["float32"]),
        (lambda m, x, y: x.half().argmax(-1, keepdim=True) + y, ("float32", "int64"), ["float16"]),
    ],
)
def test_the_coarsest_type_on_the_path_to_an_output_decides(
    function: Any, dtypes: tuple[str, ...], expected: list[str]
) -> None:
    assert output_precisions(model_of(function, *dtypes)) == expected


def test_the_types_of_weights_are_included() -> None:
    assert output_precisions(model_of(lambda m, x: x @ m.table.weight.float(), table=nn.Embedding(4, 3).half())) == [
        "float16"
    ]


def test_an_input_that_is_only_used_for_its_size_is_ignored() -> None:
    model = convert_module(
        FunctionModule(lambda m, x, y: (x + 1, y.new_ones(x.shape[0], dtype=torch.float32) * x.shape[0])),
        [(("b", 4), "float16"), ((2, 4), "float32")],
    )
    assert precisions.output_precisions(model.lowered) == ["float16", "float32"]


def test_operators_inside_branches_are_included() -> None:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            halved = torch.cond(x.sum() > 0, lambda v: (v.half() * 2).float(), lambda v: v + 1, (x,))
            return halved, torch.cond(x.sum() > 0, lambda v: v * 2, lambda v: v + 1, (x,))

    exported = torch.export.export(Branch().eval(), (torch.zeros(2, 4),)).run_decompositions({})
    program, _ = functional(exported)
    assert precisions.output_precisions(program) == ["float16", "float32"]


def test_inputs_may_have_a_coarser_precision_than_their_types() -> None:
    model = model_of(lambda m, x, y: (x + 1, y + 1), "float32", "float32")
    assert precisions.output_precisions(model.lowered, ["bfloat16", "float32"]) == ["bfloat16", "float32"]
    assert onnx_precisions(model.blobs[model.job.onnx[model.graph]], ["bfloat16", "float32"], 2) == [
        "bfloat16",
        "float32",
    ]


def test_the_precisions_of_a_model_follow_from_all_partitions_on_the_path() -> None:
    def part(name: str, *sources: str) -> Partition:
        type_ = TensorType("float32", ())
        return Partition(name, "tensorrt", name, (), tuple((source, type_) for source in sources), (type_,), ())

    partitions = Partitions(
        (part("half", "input:0"), part("after", "half:0", "input:1"), part("beside", "input:1", "weight:0")),
        ("after:0", "beside:0", "input:1", "weight:1"),
    )

    def part_precisions(partition: Partition, inputs: Any) -> list[Precision]:
        return ["float16"] if partition.name == "half" else [precisions.coarsest_precision(inputs)]

    result = precisions.model_precisions(partitions, ["float32", "float32"], ["float32", "bfloat16"], part_precisions)
    assert result == ["float16", "float32", "float32", "bfloat16"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("float64", "float32"),
        ("complex64", "float32"),
        ("complex32", "float16"),
        ("float8_e4m3fn", "bfloat16"),
        ("int64", "float32"),
    ],
)
def test_each_dtype_has_a_precision(name: str, expected: str) -> None:
    assert precisions.precision_of_dtype(name) == expected
