"""In-place writes give correct results, and writes to inputs are refused. Lowering keeps module paths, and operators that
have an ONNX translation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trtbuild.core.model.precisions import Precisions
from trtbuild.errors import SourceError
from trtbuild.stages.lower import functionalize
from trtbuild.stages.lower.modules import path_of
from trtbuild.stages.lower.request import Request
from trtbuild.stages.lower.run import lower
from trtbuild.stages.program.functional import Program, functional
from trtbuild.stages.program.text import module_paths, program_text


class WritesToAView(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        view = y[:, 0]
        view.mul_(10.0).add_(2.0)
        return y


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_an_in_place_write_to_a_view_gives_the_right_result(decompositions: Any, precision: Any) -> None:
    exported = torch.export.export(WritesToAView(), (torch.ones(2, 3),))
    program = lower(Program(exported, weights=0), precision, decompositions)
    (value,) = program.exported.module()(torch.ones(2, 3))
    assert value[0].tolist() == [22.0, 2.0, 2.0]
    assert not any(
        str(node.target).split(".")[1].endswith("_") for node in program.graph.nodes if "aten" in str(node.target)
    )


class WritesToItsInput(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.add_(1.0)
        return x * y


def test_rejects_a_write_to_an_input_and_names_the_input(decompositions: Any) -> None:
    program = Program(torch.export.export(WritesToItsInput(), (torch.ones(2), torch.ones(2))), weights=0)
    with pytest.raises(SourceError, match="writes to its input 'y'") as caught:
        lower(program, "float32", decompositions)
    assert caught.value.code == "mutated-input"


class AddsAConstant(nn.Module):
    def forward(self, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return x * weight + torch.tensor([1.0, 2.0])


@pytest.mark.parametrize("weights", [0, 1, 2])
def test_a_new_constant_stands_between_weights_and_inputs(weights: int) -> None:
    """`old` has the placeholders without the constant, as if a retrace had created the constant."""
    exported = torch.export.export(AddsAConstant(), (torch.ones(2), torch.ones(2)))
    old = [(spec, spec.arg.name) for spec in exported.graph_signature.input_specs if spec.target is None]
    assert [name for _, name in old] == ["weight", "x"]
    specs = functionalize._restore_placeholders(exported, old, weights)
    expected = ["weight", "x"]
    expected.insert(weights, "c_lifted_tensor_0")
    assert [spec.arg.name for spec in specs] == [node.name for node in exported.graph.nodes][:3] == expected


def test_operators_with_a_translation_are_not_decomposed(lowered: Any, calls: Any) -> None:
    names = calls(lowered("sdpa")) + calls(lowered("mlp")) + calls(lowered("pre_norm"))
    for name in ("linear.default", "gelu.default", "layer_norm.default", "scaled_dot_product_attention.default"):
        assert name in names


def test_nodes_that_compute_sizes_belong_to_no_module(lowered: Any) -> None:
    paths = module_paths(lowered("bert"))
    assert {path for path, name, _ in paths if name == "aten.sym_size.int"} == {""}
    assert not any("metadata_hook" in path for path, *_ in paths)


class Flattens(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu().reshape(-1)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Flattens()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def test_a_view_that_lost_its_module_path_gets_it_back(lower_module: Any) -> None:
    _, program = lower_module(Outer(), (torch.randn(2, 3),))
    assert {path_of(node) for node in program.graph.nodes if node.op == "call_function"} == {"inner"}


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_program_that_is_functional_already_is_not_retraced(
    decompositions: Any, precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4)).eval()
    shapes = {"input": {0: torch.export.Dim("b", min=2, max=8)}}
    raw = torch.export.export(layer, (torch.ones(3, 4),), dynamic_shapes=shapes)
    program, _ = functional(raw.run_decompositions({}))
    assert functionalize.needs_no_retrace(program, Request(Precisions(precision), decompositions))
    copied = lower(program, precision, decompositions)
    monkeypatch.setattr(functionalize, "needs_no_retrace", lambda program, request: False)
    retraced = lower(program, precision, decompositions)
    assert program_text(copied) == program_text(retraced)
    assert module_paths(copied) == module_paths(retraced)
