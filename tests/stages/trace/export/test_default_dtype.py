"""A model may set torch's default dtype. Its program computes the same values when the default dtype is float32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from trtbuild.core.model.spec import Input
from trtbuild.stages.lower.run import lower
from trtbuild.stages.program.consistency import read_program
from trtbuild.stages.program.translations import decomposition_table
from trtbuild.stages.trace.examples import dtype_name

SHAPES = {"x": ((1, 4), (2, 4), (8, 4))}


class Positions(nn.Module):
    """Computes with the default dtype in several ways."""

    def forward(self, x):
        positions = torch.arange(x.shape[0])
        created = x * torch.ones(4) + torch.full((1,), 0.1) + torch.linspace(0, 1, 4)
        inside = torch.cond(x.shape[0] > 5, lambda v: v + torch.arange(4) / 3, lambda v: v - 1, (created,))
        masks = torch.where(positions > 1, 0.1, 0.3), torch.where(positions > 1, 0.1, positions)
        return inside, positions / 3, torch.sqrt(positions), positions * 0.5, *masks


@pytest.fixture(params=[torch.bfloat16, torch.float64], ids=["bfloat16", "float64"])
def dtype(request) -> Iterator[torch.dtype]:
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


def test_a_program_contains_the_default_dtype(traced, job_of, dtype) -> None:
    module = Positions().eval()
    job = job_of(SHAPES, inputs=[Input("x", dtype_name(dtype))])
    result = traced(module, job)
    x = torch.randn(7, 4)
    expected = module(x)
    torch.set_default_dtype(torch.float32)
    program = read_program(result.program)
    torch.testing.assert_close(program.exported.graph_module(x), expected, rtol=0, atol=0)
    lowered = lower(program, "float32", decomposition_table(), [[1], [8]])
    # a decomposition rounds in other places than eager PyTorch
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(tuple(lowered.exported.graph_module(x)), expected, rtol=2 * rounding, atol=rounding)


def test_an_example_may_be_complex_under_another_default_dtype(traced, job_of, dtype) -> None:
    job = job_of(SHAPES, inputs=[Input("x", "complex64")])
    assert traced(lambda x: x.real * 2, job).interface["outputs"][0]["dtype"] == "float32"
