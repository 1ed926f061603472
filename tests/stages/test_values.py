"""`draw_in_range` draws random tensors whose values are in a range."""

from __future__ import annotations

import pytest
import torch

from trtbuild.core.values.value_ranges import TYPE_LIMITS
from trtbuild.stages.values import draw_in_range

INTEGERS = [name for name, ends in TYPE_LIMITS.items() if isinstance(ends[0], int)]


def draw(dtype: str, ends: tuple[int, int] | tuple[float, float], count: int = 2000, seed: int = 0) -> torch.Tensor:
    values = draw_in_range(getattr(torch, dtype), (count,), ends, torch.Generator().manual_seed(seed))
    assert values.dtype is getattr(torch, dtype) and values.shape == (count,)
    return values


@pytest.mark.parametrize("dtype", INTEGERS)
def test_every_integer_of_a_range_is_drawn_including_both_ends(dtype: str) -> None:
    assert sorted(set(draw(dtype, (3, 9)).tolist())) == list(range(3, 10))
    assert set(draw(dtype, (7, 7)).tolist()) == {7}


@pytest.mark.parametrize("dtype", TYPE_LIMITS)
def test_a_range_can_be_all_values_of_a_type(dtype: str) -> None:
    values = draw(dtype, TYPE_LIMITS[dtype]).double()
    assert torch.isfinite(values).all()
    assert values.min() < 0.5 * TYPE_LIMITS[dtype][0] or TYPE_LIMITS[dtype][0] == 0
    assert values.max() > 0.5 * TYPE_LIMITS[dtype][1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_floats_are_spread_over_the_range(dtype: str) -> None:
    values = draw(dtype, (-2.0, 6.0)).double()
    assert -2 <= values.min() < -1.9 and 5.9 < values.max() <= 6
    assert abs(float(values.mean()) - 2) < 0.2


def test_the_ends_of_int64_are_drawn_too() -> None:
    top = 2**63 - 1
    assert set(draw("int64", (top - 1, top)).tolist()) == {top - 1, top}
    assert set(draw("int64", (-(2**63), 1 - 2**63)).tolist()) == {-(2**63), 1 - 2**63}


def test_equal_seeds_give_equal_values() -> None:
    assert torch.equal(draw("int64", (0, 1000), seed=1), draw("int64", (0, 1000), seed=1))
    assert not torch.equal(draw("int64", (0, 1000), seed=1), draw("int64", (0, 1000), seed=2))


def test_scalars_and_empty_tensors_can_be_drawn() -> None:
    generator = torch.Generator().manual_seed(0)
    assert draw_in_range(torch.int64, (), (4, 4), generator).item() == 4
    assert draw_in_range(torch.float32, (0, 3), (0.0, 1.0), generator).shape == (0, 3)
