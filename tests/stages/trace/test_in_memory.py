"""Traces of modules in memory, and the inputs of an exported program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim, export

from trtbuild.core.model.declared_shapes import derive
from trtbuild.core.model.spec import Input, Profile, ShapeRange, Source
from trtbuild.errors import SourceError
from trtbuild.stages.trace.in_memory import ProgramAxis, program_inputs, trace_in_memory
from trtbuild.stages.trace.job import TraceJob


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 3)
        self.extra = torch.ones(3)  # a constant, not a weight

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor | None = None) -> torch.Tensor:
        y = self.linear(x) + self.extra
        return y if scale is None else y * scale


def job() -> TraceJob:
    inputs = (Input("x"),)
    profile = Profile("0", (("x", ShapeRange((1, 4), (2, 4), (8, 4))),))
    shapes, _ = derive(inputs, (), [profile])
    assert shapes is not None
    return TraceJob(Source("module", "Net"), inputs, shapes, ((1,), (8,)))


def test_a_module_and_its_exported_program_give_the_same_graph(tmp_path: Path) -> None:
    net = Net().eval()
    exported = export(net, (torch.ones(3, 4),), dynamic_shapes={"x": {0: Dim("rows", min=1, max=8)}})
    of_module, of_program = (trace_in_memory(model, job(), tmp_path) for model in (net, exported))
    assert of_module.graph == of_program.graph
    assert [slot for slot, _ in of_module.weights] == [0, 1]
    assert of_module.interface["operators"] == {}


def test_a_module_that_was_made_in_inference_mode_gives_the_same_graph(tmp_path: Path) -> None:
    with torch.inference_mode():
        net = Net().eval()
        of_net = trace_in_memory(net, job(), tmp_path)
    assert of_net.graph == trace_in_memory(Net().eval(), job(), tmp_path).graph
    assert net.linear.weight.is_inference()


def test_autocast_of_the_caller_does_not_change_the_graph(tmp_path: Path) -> None:
    with torch.autocast("cpu"):
        under_autocast = trace_in_memory(Net().eval(), job(), tmp_path)
        assert torch.is_autocast_enabled("cpu")
    assert under_autocast.graph == trace_in_memory(Net().eval(), job(), tmp_path).graph


def test_a_parameter_that_is_none_is_not_a_weight(tmp_path: Path) -> None:
    """A layer without a bias registers None."""
    for layer in (torch.nn.Linear(4, 3, bias=False), torch.nn.LayerNorm(4, bias=False)):
        assert len(trace_in_memory(layer.eval(), job(), tmp_path).weights) == 1


def test_rejects_a_module_in_training_mode_and_a_module_without_values(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="training mode"):
        trace_in_memory(Net(), job(), tmp_path)
    with pytest.raises(SourceError, match="meta device"):
        trace_in_memory(Net().to("meta").eval(), job(), tmp_path)


def test_custom_operators_are_recorded(tmp_path: Path) -> None:
    @torch.library.custom_op("trtbuild_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @twice.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    class Calls(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return twice(x)

    traced = trace_in_memory(Calls().eval(), job(), tmp_path)
    assert list(traced.interface["operators"]) == ["trtbuild_tests.twice.default"]


def test_a_programs_inputs_have_names_ranges_and_units() -> None:
    half = Dim("half", min=2, max=6)
    exported = export(
        Net().eval(),
        (torch.ones(4, 4),),
        {"scale": torch.ones(4, 1)},
        dynamic_shapes={"x": {0: 2 * half}, "scale": {0: 2 * half}},
    )
    x, scale = program_inputs(exported)
    assert (x.name, x.keyword, x.dtype, x.shape[1]) == ("x", False, "float32", 4)
    assert (scale.name, scale.keyword) == ("scale", True)
    axis = x.shape[0]
    assert isinstance(axis, ProgramAxis)
    assert (axis.unit, axis.low, axis.high, axis.example_size) == (2, 4, 12, 4)
    assert scale.shape[0] == axis


def test_rejects_a_program_with_an_input_that_is_not_a_tensor() -> None:
    class Times(torch.nn.Module):
        def forward(self, x: torch.Tensor, times: int) -> torch.Tensor:
            return x * times

    with pytest.raises(SourceError, match="takes 'times' as a value of type int"):
        program_inputs(export(Times().eval(), (torch.ones(2), 3)))
