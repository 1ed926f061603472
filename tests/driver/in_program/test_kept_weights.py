"""A weight has changed if it was written to, replaced or moved to other memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from trtbuild.driver.in_program.kept_weights import KeptWeights


def _write(values: list[torch.Tensor]) -> None:
    values[2].add_(1)


def _replace(values: list[torch.Tensor]) -> None:
    values[2] = values[2].clone()


def _move(values: list[torch.Tensor]) -> None:
    values[2].data = values[2].data.clone()


@pytest.mark.parametrize("change", [_write, _replace, _move])
def test_a_change_of_a_weight_is_detected(change: Callable[[list[torch.Tensor]], None]) -> None:
    with torch.no_grad():
        values = [torch.randn(3), torch.randn(2), torch.nn.Parameter(torch.randn(4))]
        kept = KeptWeights([(0, values[0]), (2, values[2])])
        values[1].add_(1)  # not a weight
        assert not kept.have_changed(values)
        change(values)
        assert kept.have_changed(values)


def test_weights_of_inference_mode_are_compared_by_object_and_address() -> None:
    with torch.inference_mode():
        values = [torch.randn(3)]
    kept = KeptWeights([(0, values[0])])
    assert not kept.have_changed(values)
    assert kept.have_changed([values[0].clone()])


def test_no_tensor_gets_the_earlier_memory_of_a_moved_weight() -> None:
    values = [torch.nn.Parameter(torch.randn(1 << 16))]
    kept = KeptWeights([(0, values[0])])
    address = values[0].data_ptr()
    values[0].data = torch.randn(1 << 16)
    assert torch.empty(1 << 16).data_ptr() != address
    assert kept.have_changed(values)
