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


def test_the_old_memory_of_a_moved_weight_is_not_reused() -> None:
    values = [torch.nn.Parameter(torch.randn(1 << 16))]
    kept = KeptWeights([(0, values[0])])
    address = values[0].data_ptr()
    values[0].data = torch.randn(1 << 16)
    assert torch.empty(1 << 16).data_ptr() != address
    assert kept.have_changed(values)


@pytest.mark.parametrize("settings", [{"fused": True}, {"foreach": True}, {"foreach": False}])
def test_a_step_of_an_optimizer_is_detected(settings: dict[str, bool]) -> None:
    trained, frozen = torch.nn.Linear(3, 2), torch.nn.Linear(2, 2).requires_grad_(False)
    kept = [KeptWeights([(0, module.weight)]) for module in (trained, frozen)]
    optimizer = torch.optim.AdamW([*trained.parameters(), *frozen.parameters()], **settings)
    frozen(trained(torch.ones(1, 3))).sum().backward()
    assert not any(entry.have_changed([module.weight]) for entry, module in zip(kept, (trained, frozen), strict=True))
    optimizer.step()
    assert kept[0].have_changed([trained.weight])
    assert not kept[1].have_changed([frozen.weight])


def test_a_new_running_mean_of_a_batch_norm_is_detected() -> None:
    norm, other = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    kept = KeptWeights([(0, norm.running_mean), (1, norm.running_var), (2, norm.weight)])
    values = [norm.running_mean, norm.running_var, norm.weight]
    norm.eval()(torch.randn(4, 3))
    other(torch.randn(4, 3))
    assert not kept.have_changed(values)
    norm.train()(torch.randn(4, 3))
    assert kept.have_changed(values)
