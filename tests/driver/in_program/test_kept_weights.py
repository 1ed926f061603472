"""A weight that is written to, replaced or laid elsewhere has changed, and nothing else has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from trtbuild.driver.in_program.kept_weights import KeptWeights


def _written(values: list[torch.Tensor]) -> None:
    values[2].add_(1)


def _replaced(values: list[torch.Tensor]) -> None:
    values[2] = values[2].clone()


def _laid_elsewhere(values: list[torch.Tensor]) -> None:
    values[2].data = values[2].data.clone()


@pytest.mark.parametrize("change", [_written, _replaced, _laid_elsewhere])
def test_a_change_is_seen(change: Callable[[list[torch.Tensor]], None]) -> None:
    with torch.no_grad():
        values = [torch.randn(3), torch.randn(2), torch.nn.Parameter(torch.randn(4))]
        kept = KeptWeights([(0, values[0]), (2, values[2])])
        values[1].add_(1)  # no weight
        assert not kept.have_changed(values)
        change(values)
        assert kept.have_changed(values)


def test_weights_of_inference_mode_are_known_by_what_and_where_they_are() -> None:
    with torch.inference_mode():
        values = [torch.randn(3)]
    kept = KeptWeights([(0, values[0])])
    assert not kept.have_changed(values)
    assert kept.have_changed([values[0].clone()])


def test_the_memory_of_a_weight_that_is_gone_is_no_other_tensors() -> None:
    values = [torch.nn.Parameter(torch.randn(1 << 16))]
    kept = KeptWeights([(0, values[0])])
    place = values[0].data_ptr()
    values[0].data = torch.randn(1 << 16)
    assert torch.empty(1 << 16).data_ptr() != place
    assert kept.have_changed(values)
