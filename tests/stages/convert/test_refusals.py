"""The parser accepts the conversions of all cases. `Conversion.origins` leads from a refused node to the call of the
program that the node came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from trtbuild.stages.convert.conversion import convert
from trtbuild.toolchain.compiling.parsing import Parser


class BetweenLinears(nn.Module):
    """A function between two linear layers."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.before, self.after = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.function(self.before(x)))


_REFUSED = {
    "aten.linalg_det.default": lambda x: torch.linalg.det(x)[:, None, None] * x,
    "aten.nonzero.default": lambda x: x + torch.nonzero(x).sum(),
    "aten._unique2.default": lambda x: x + torch.unique(x).sum(),
    "aten._fft_r2c.default": lambda x: torch.fft.rfft(x, dim=-1).abs().sum() + x,
}


@pytest.mark.parametrize("operator", _REFUSED)
def test_the_origin_of_a_refused_node_is_the_refused_call(operator: str, lowered: Any) -> None:
    program, _ = lowered(BetweenLinears(_REFUSED[operator]), (torch.randn(3, 4, 4),), ({0: Dim("b", min=1, max=8)},))
    conversion = convert(program, 20)
    refusal = Parser("tensorrt-rtx").find_refusal(conversion.model)
    assert refusal is not None
    origins = dict(conversion.origins)
    calls = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert {calls[origins[name]] for name in refusal.nodes} == {operator}


def test_float64_inside_a_model_is_refused_with_all_calls_that_use_it(lowered: Any) -> None:
    model = BetweenLinears(lambda x: (x.double() * 1e300 * 1e-300).float())
    program, _ = lowered(model, (torch.randn(3, 4, 4),), None)
    conversion = convert(program, 20)
    refusal = Parser("tensorrt-rtx").find_refusal(conversion.model)
    assert refusal is not None
    origins = dict(conversion.origins)
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    refused = {origins[name] for name in refusal.nodes}
    for index, node in enumerate(nodes):
        if "assert" not in str(node.target):  # a conversion has no nodes for assertions
            dtypes = {value.meta["val"].dtype for value in (node, *node.all_input_nodes)}
            assert (index in refused) == (torch.float64 in dtypes)


def test_every_converted_model_is_accepted_by_the_parser(case: str, converted: Any) -> None:
    assert Parser("tensorrt-rtx").find_refusal(converted(case).model) is None
