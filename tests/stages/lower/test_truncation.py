"""With ``truncate_double``, a program computes in float32 instead of float64 where it can.

Its inputs, weights and outputs keep their types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim, export

from trtbuild.stages.lower.run import lower
from trtbuild.stages.program.functional import Program, functional
from trtbuild.stages.program.text import program_text, target_name
from trtbuild.stages.program.translations import decomposition_table

F64, F32 = torch.float64, torch.float32


class FunctionModule(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def traced(module: torch.nn.Module, dtype: torch.dtype = F64) -> Program:
    x = torch.rand(3, 8, dtype=dtype)
    exported = export(module.eval(), (x,), dynamic_shapes={"x": {0: Dim("rows", min=2, max=16)}})
    program, _ = functional(exported.run_decompositions({}))
    return program


def lowered(program: Program) -> Program:
    return lower(program, "float32", decomposition_table(), truncates_double=True)


def float64_calls(program: Program) -> list[str]:
    """The operators, except casts, that return a float64 tensor."""
    return [
        target_name(node.target)
        for node in program.graph.nodes
        if node.op == "call_function" and target_name(node.target) != "aten._to_copy.default"
        if isinstance(node.meta.get("val"), torch.Tensor) and node.meta["val"].dtype is F64
    ]


def run(program: Program, *arguments: torch.Tensor) -> list[torch.Tensor]:
    with torch.no_grad():
        return list(program.exported.module()(*arguments))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.softmax(x * 2.5 + 1, -1),
        lambda x: (x.sum(0), x.argmax(-1), x > 0.5),
        lambda x: x.topk(2),
        lambda x: x.masked_fill(x > 0.5, torch.finfo(F64).min).softmax(-1),
        lambda x: x.float().double().mean(-1, keepdim=True),
        lambda x: torch.cat([x, torch.arange(8, dtype=F64)[None]]) / torch.full((8,), 3.0, dtype=F64),
        lambda x: x.to(torch.int64) + torch.tensor([1, 2, 3, 4, 5, 6, 7, 8]),
        lambda x: x * torch.tensor([0.5] * 8, dtype=F64),
        lambda x: x.reshape(x.shape[0], 2, 4).transpose(1, 2),
        lambda x: (x, x.clone() + 1),
    ],
)
def test_values_are_float32_and_outputs_keep_their_types(function: Callable[[torch.Tensor], Any]) -> None:
    program = traced(FunctionModule(function))
    lowered_program = lowered(program)
    assert float64_calls(lowered_program) == []
    x = torch.rand(5, 8, dtype=F64)
    for result, expected in zip(run(lowered_program, x), run(program, x), strict=True):
        assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
        torch.testing.assert_close(result.double(), expected.double(), rtol=1e-5, atol=1e-6)


def test_the_lowest_number_in_a_constant_becomes_that_of_float32() -> None:
    """A row in which every key is masked gets equal weights. With -inf, it would be NaN."""
    module = FunctionModule(
        lambda x: torch.where(x > 0.5, torch.tensor(torch.finfo(F64).min, dtype=F64), x).softmax(-1)
    )
    x = torch.rand(3, 8, dtype=F64)
    x[0] = 1.0
    program = traced(module)
    torch.testing.assert_close(run(lowered(program), x), run(program, x), rtol=1e-5, atol=1e-6)


def test_weights_keep_their_type_and_are_cast_once() -> None:
    class AppliesLayerTwice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 8).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.relu(self.layer(x)))

    lowered_program = lowered(traced(AppliesLayerTwice()))
    assert [node.meta["val"].dtype for node in lowered_program.weight_nodes] == [F64, F64]
    assert [len(node.users) for node in lowered_program.weight_nodes] == [1, 1]
    assert float64_calls(lowered_program) == []


@pytest.mark.parametrize(
    ("function", "float64_operators"),
    [
        (lambda x: torch.relu(x) * 1e300, ["aten.mul.Tensor"]),
        (lambda x: torch.relu(x) + 1e-50, ["aten.add.Tensor"]),
        (lambda x: torch.fft.rfft(torch.relu(x)).real + 1, ["aten.view_as_real.default"]),
    ],
)
def test_calls_that_cannot_be_float32_keep_float64(
    function: Callable[[torch.Tensor], Any], float64_operators: list[str]
) -> None:
    program = traced(FunctionModule(function))
    lowered_program = lowered(program)
    assert float64_calls(lowered_program) == float64_operators
    x = torch.rand(5, 8, dtype=F64)
    for result, expected in zip(run(lowered_program, x), run(program, x), strict=True):
        assert result.dtype is expected.dtype
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)


def test_a_nested_graph_keeps_float64() -> None:
    class Branches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(x) + 1
            return torch.cond(y.sum() > 0, lambda y: y * 2, lambda y: y - 2, (y,)) + 1

    program = traced(Branches())
    lowered_program = lowered(program)
    (cond,) = (node for node in lowered_program.graph.nodes if "cond" in str(node.target))
    _, _, _, (operand,) = cond.args
    assert operand.meta["val"].dtype is F64
    x = torch.rand(5, 8, dtype=F64)
    torch.testing.assert_close(run(lowered_program, x), run(program, x), rtol=1e-5, atol=1e-6)


def test_a_program_without_float64_does_not_change() -> None:
    program = traced(FunctionModule(lambda x: torch.softmax(x, -1)), F32)
    assert program_text(lowered(program)) == program_text(lower(program, "float32", decomposition_table()))


def test_truncation_is_off_by_default() -> None:
    program = traced(FunctionModule(lambda x: torch.softmax(x, -1)))
    assert float64_calls(lower(program, "float32", decomposition_table())) == ["aten.softmax.int"]


def test_truncated_values_are_float32_in_a_model_of_half_precision() -> None:
    program = traced(FunctionModule(lambda x: torch.softmax(x.double() * 2, -1).float()), F32)
    lowered_program = lower(program, "float16", decomposition_table(), truncates_double=True)
    assert float64_calls(lowered_program) == []
    x = torch.rand(5, 8)
    torch.testing.assert_close(run(lowered_program, x), run(program, x), rtol=1e-3, atol=1e-3)
