"""Masks that mask nothing are removed. All other masks stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Masked(nn.Module):
    """Attention with the mask ``position + offset >= least``, as in transformers."""

    def __init__(self, least: int, offset: int = 0) -> None:
        super().__init__()
        self.least, self.offset = least, offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = (torch.arange(x.shape[-2]) + self.offset)[None, None, :, None]
        mask = (positions >= self.least) & torch.ones((), dtype=torch.bool)
        return F.scaled_dot_product_attention(x, x, x, mask.expand(x.shape[0], 1, -1, x.shape[-2]))


_X = (torch.randn(2, 2, 5, 8),)
_DIMS = ({2: Dim("s", min=2, max=9)},)


@pytest.mark.parametrize(("least", "offset"), [(0, 0), (-1, 0), (0, 3)])
def test_a_mask_that_is_true_by_construction_is_dropped(lower_module: Any, calls: Any, least: int, offset: int) -> None:
    traced, program = lower_module(Masked(least, offset), _X, "float32", _DIMS)
    assert calls(program) == ["scaled_dot_product_attention.default"]
    assert torch.allclose(traced.run(program)[0], traced.eager()[0], atol=1e-6)


@pytest.mark.parametrize(("least", "offset"), [(1, 0), (0, -1)])
def test_a_mask_that_may_be_false_stays(lower_module: Any, calls: Any, least: int, offset: int) -> None:
    traced, program = lower_module(Masked(least, offset), _X, "float32", _DIMS)
    assert "masked_fill.Scalar" in calls(program)
    assert torch.allclose(traced.run(program)[0], traced.eager()[0], atol=1e-6)
