"""`find_ranges` recognizes values that may be too large or too small for half precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trtbuild.stages.lower.half_precision.ranges import Range, find_ranges

_MIN = torch.finfo(torch.float32).min


class FunctionModule(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.function(x, ids, mask)


#: Case → (expression of float32 `x`, integer `ids` and boolean `mask`; range of its result).
_CASES = {
    "an input": (lambda x, ids, mask: x.t(), Range.UNSEEN),
    "two masks": (lambda x, ids, mask: x + torch.full(x.shape, -torch.inf).triu(1), Range.UNSEEN),
    "a scaled mask": (lambda x, ids, mask: x * torch.full((3,), 0.5), Range.UNSEEN),
    "an activation": (lambda x, ids, mask: x @ x.t(), Range.HALF),
    "a residual": (lambda x, ids, mask: x[:, :1] + x @ x.t(), Range.MIXED),
    "a sum with a residual": (lambda x, ids, mask: (x[:, :1] + x @ x.t()).relu() + x @ x.t(), Range.MIXED),
    "infinity": (lambda x, ids, mask: x.masked_fill(mask, -torch.inf).sigmoid(), Range.HALF),
    "float32's minimum": (lambda x, ids, mask: x.masked_fill(mask, _MIN), Range.BEYOND),
    "a product with float32's minimum": (lambda x, ids, mask: (1.0 - mask.float()) * _MIN, Range.BEYOND),
    "moved": (lambda x, ids, mask: torch.where(mask, 0.0, _MIN)[:, None].expand(-1, 2, -1).contiguous(), Range.BEYOND),
    "padded": (lambda x, ids, mask: nn.functional.pad(x, (0, 1), value=1e9), Range.BEYOND),
    "a constant": (lambda x, ids, mask: x + torch.tensor([0.0, 0.0, 1e30]), Range.BEYOND),
    "after softmax": (lambda x, ids, mask: (x + _MIN).softmax(-1) * 2, Range.HALF),
    "after a clamp": (lambda x, ids, mask: (x * 1e9).clamp(-1.0, 1.0), Range.HALF),
    "a default clamp": (lambda x, ids, mask: nn.functional.hardtanh(x * 1e9), Range.HALF),
    "a clamp by infinity": (lambda x, ids, mask: (x * 1e9).clamp(0.0, torch.inf), Range.BEYOND),
    "a bound": (lambda x, ids, mask: (x @ x.t()).clamp(max=60000.0), Range.HALF),
    "a bound beyond half": (lambda x, ids, mask: (x @ x.t()).clamp(max=1e6), Range.BEYOND),
    "bounds beyond half": (lambda x, ids, mask: nn.functional.hardtanh(x @ x.t(), -1e6, 1e6), Range.BEYOND),
    "a square": (lambda x, ids, mask: x**2, Range.WIDE),
    "a root of a sum of squares": (lambda x, ids, mask: (x * x).sum(-1).sqrt() + 1, Range.WIDE),
    "a tiny epsilon": (lambda x, ids, mask: x.sigmoid() + 1e-12, Range.WIDE),
    "a tiny factor": (lambda x, ids, mask: x * 1e-8, Range.BEYOND),
    "a tiny divisor": (lambda x, ids, mask: x.sigmoid() / 1e-8, Range.BEYOND),
    "a tiny factor of a term": (lambda x, ids, mask: torch.add(x, x, alpha=1e-8), Range.BEYOND),
    "a product with a tiny factor": (lambda x, ids, mask: (x * 1e-8) @ x.t(), Range.WIDE),
    "a factor of a product": (lambda x, ids, mask: torch.addmm(x, x, x.t() @ x, beta=1e6), Range.WIDE),
    "an index": (lambda x, ids, mask: ids.float() / 2, Range.BEYOND),
    "a boolean": (lambda x, ids, mask: mask.float() * 2, Range.HALF),
    "positions": (lambda x, ids, mask: torch.arange(4.0) + 1, Range.BEYOND),
    "a product of an index": (lambda x, ids, mask: ids.float() @ x.t(), Range.WIDE),
    "a size": (lambda x, ids, mask: (x @ x.t()) / x.shape[0], Range.HALF),
}


@pytest.mark.parametrize("case", _CASES)
def test_find_ranges_gives_the_range_of_an_expression(case: str, decompositions: Any) -> None:
    function, expected = _CASES[case]
    inputs = (torch.randn(2, 3), torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.bool))
    exported = torch.export.export(FunctionModule(function), inputs).run_decompositions(decompositions)
    constants = {
        spec.arg.name: exported.constants[spec.target]
        for spec in exported.graph_signature.input_specs
        if spec.target in exported.constants
    }
    range_of_node = find_ranges(exported.graph, set(), constants, torch.float16)
    assert range_of_node[exported.graph.output_node().args[0][0]] is expected
