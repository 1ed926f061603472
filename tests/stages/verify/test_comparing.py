"""The difference between a result and the expected tensor."""

from __future__ import annotations

import math
import re

import pytest
import torch

from trtbuild.stages.verify.comparing import EQUAL, deviation

NAN, INF = math.nan, math.inf


def tensor(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(
    ("result", "expected", "error"),
    [
        (tensor(1.0, 2.0), tensor(1.0, 2.0), 0.0),
        (tensor(1.0, 2.5), tensor(1.0, 2.0), 0.25),
        (tensor(-4.0, 1.0), tensor(-4.0, 2.0), 0.25),
        (tensor(NAN, INF, -INF, 2.0), tensor(NAN, INF, -INF, 2.0), 0.0),
        (tensor(NAN, 3.0), tensor(NAN, 2.0), 0.5),
        (tensor(0.0, -0.0), tensor(-0.0, 0.0), 0.0),
        (tensor(), tensor(), 0.0),
        (tensor(1, 2, dtype=torch.int64), tensor(1, 2, dtype=torch.int64), 0.0),
        (tensor(65504.0, dtype=torch.float16), tensor(-65504.0, dtype=torch.float16), 2.0),
    ],
)
def test_the_error_is_relative_to_the_largest_number(
    result: torch.Tensor, expected: torch.Tensor, error: float
) -> None:
    difference = deviation(result, expected)
    assert difference.error == pytest.approx(error) and difference.text == ""


@pytest.mark.parametrize(
    ("result", "expected", "text"),
    [
        (tensor(1.0), tensor(1.0, dtype=torch.float16), "dtype float32 instead of float16"),
        (tensor(1.0), tensor(1.0, 1.0), r"shape \[1\] instead of \[2\]"),
        (tensor(1.0, NAN), tensor(1.0, 2.0), "1 of 2 values are NaN"),
        (tensor(1.0, 2.0), tensor(NAN, INF), "2 of 2 values are NaN or infinite"),
        (tensor(INF), tensor(-INF), "infinite"),
        (tensor(1, 2, 3, dtype=torch.int32), tensor(1, 2, 4, dtype=torch.int32), "1 of 3 values differ"),
        (torch.tensor([True]), torch.tensor([False]), "differ"),
        (tensor(1e-9), tensor(0.0), "where all values should be zero"),
    ],
)
def test_the_error_of_incomparable_tensors_is_infinite(result: torch.Tensor, expected: torch.Tensor, text: str) -> None:
    difference = deviation(result, expected)
    assert math.isinf(difference.error)
    assert re.search(text, difference.text)


def test_empty_tensors_are_equal() -> None:
    assert deviation(torch.ones(3, 0), torch.ones(3, 0)) == EQUAL


def test_the_fill_value_of_a_mask_hides_no_error() -> None:
    fill = [-1e9] * 3
    assert deviation(torch.tensor([*fill, 1.0, 5.0]), torch.tensor([*fill, 2.0, -3.0])).error == pytest.approx(8 / 3)
    assert deviation(torch.tensor([*fill, 1.0]), torch.tensor([*fill, 1.0 + 1e-6])).error < 1e-5
    # numbers at fewer than three places are not fill values; different numbers in the two tensors are not fill values
    assert deviation(torch.tensor([1e9, 1.0]), torch.tensor([1e9, 2.0])).error == pytest.approx(1e-9)
    assert deviation(torch.tensor([1e9, 1e9 + 256, 1e9, 1.0]), torch.tensor([1e9, 1e9, 1e9 + 128, 2.0])).error < 1e-6
