"""A squeeze removes an axis only if its size is always 1. The file also tests other models of one expression."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.fuzz.comparing import differences
from tests.fuzz.modules import module_from_text
from tests.fuzz.pipeline import ModuleCase, build
from trtbuild.errors import ConversionRefused, SourceError
from trtbuild.stages.program.translations import decomposition_table


@pytest.mark.parametrize(
    ("body", "axes"),
    [
        ("x0.squeeze(0) * 2", [(2, 3, 8), 8]),
        ("x0.squeeze(1) * 2", [4, (2, 3, 8), 8]),
        ("x0.squeeze() * 2", [(2, 3, 8), 1, 8]),
        ("torch.squeeze(x0, (0, 1)) * 2", [(2, 3, 8), 1, 8]),
        ("torch.squeeze_copy(x0, 1) * 2", [1, (2, 3, 8), 1]),
        ("x0.squeeze(2) * 2", [(2, 3, 8), 1, 5]),
        ("x0.squeeze(1)", [(1, 3, 8), 1, 5]),
        # at size 1, the rank of an inner tensor changes, and the rank of the output does not
        ("x0.squeeze(0).sum()", [(1, 3, 8), 5]),
    ],
)
def test_a_squeeze_equals_eager_if_the_rank_of_the_output_is_fixed(body: str, axes: list[Any]) -> None:
    case = ModuleCase(module_from_text([], body, 1), [("float32", axes)])
    assert not differences(case, build(case)).differences


@pytest.mark.parametrize(
    ("body", "axes"),
    [
        ("x0.squeeze(0) * 2", [(1, 3, 8), 8]),
        ("x0.squeeze(1) * 2", [4, (1, 3, 8), 8]),
        ("torch.squeeze(x0, (0, 1))", [(1, 2, 3), 1, 4]),
        ("x0.split(1)[1]", [(1, 2, 2), 4]),
    ],
)
def test_rejects_a_program_that_differs_or_fails_at_size_1(body: str, axes: list[Any]) -> None:
    with pytest.raises(SourceError) as caught:
        build(ModuleCase(module_from_text([], body, 1), [("float32", axes)]))
    assert "x0_" in caught.value.text or "fails" in caught.value.text
    assert caught.value.hint


def test_the_error_names_operator_size_and_hint() -> None:
    with pytest.raises(SourceError) as caught:
        build(ModuleCase(module_from_text(["y = x0 + 1"], "y.squeeze(0) * 2", 1), [("float32", [(1, 3, 8), 8])]))
    error = caught.value
    assert error.text == (
        "the number of axes of an output depends on a size: with x0_0 = 1, aten.squeeze.dim gives "
        "float32[8] where the program has float32[1, 8]"
    )
    assert error.hint is not None and "start its range at 2" in error.hint


@pytest.mark.parametrize(
    ("body", "dtype"),
    [
        ("F.rrelu(x0)", "float32"),
        ("torch.empty_like(x0).fill_(3) + x0", "float32"),
        ("x0.new_empty(x0.shape).copy_(x0) * 2", "float32"),
        ("x0.sum(1)", "float16"),
        ("x0.sum(1)", "bfloat16"),
        ("x0.half().sum()", "float32"),
        ("torch.copysign(x0, -x0)", "float32"),
        ("torch.signbit(x0) & (x0 < 1)", "float32"),
        ("x0[:, 8:].mean(1)", "float32"),
        ("x0[:, 8:].amax(1, keepdim=True) if x0.shape[1] > 8 else x0[:, 8:].sum(1)", "float32"),
        ("torch.fft.rfft(x0).abs() + 1", "float32"),
        ("x0 / (x0.abs() + 1e-12), x0 * 1.000001 - x0", "float32"),
        ("F.batch_norm(x0, torch.ones(8), torch.ones(8), training=True)", "float32"),
        ("x0.repeat_interleave(x0.shape[0], 1)", "float32"),
        ("F.avg_pool1d(x0[None], 2)[0] + F.avg_pool2d(x0[None], (1, 2), divisor_override=3)[0]", "float32"),
        ("x0.scatter_reduce(1, torch.zeros_like(x0).long(), x0, 'mean')", "float32"),
        ("F.adaptive_avg_pool2d(x0[None], 2)[0]", "float32"),
        ("F.adaptive_avg_pool1d(x0.T, 2)", "float32"),
        ("torch.atan2(x0, x0 * 0)", "float32"),
        ("torch.ldexp(x0, x0)", "bool"),
        ("F.nll_loss(x0, x0.argmax(1), reduction='none')", "float32"),
        ("torch.linalg.inv(x0[:, None] * x0[..., None] + torch.eye(8))", "float32"),
    ],
)
def test_models_of_one_expression_equal_eager(body: str, dtype: str) -> None:
    case = ModuleCase(module_from_text([], body, 1), [(dtype, [(2, 3, 8), 8])])
    assert not differences(case, build(case)).differences


def test_rejects_an_operator_whose_size_torch_infers_wrongly() -> None:
    with pytest.raises(
        SourceError, match=r"aten\.unique_consecutive\.default gives float32\[2\], but PyTorch declares"
    ) as caught:
        build(ModuleCase(module_from_text([], "torch.unique_consecutive(x0, dim=-1)", 1), [("float32", [(2, 3, 8)])]))
    assert caught.value.code == "wrong-type"


def test_rejects_a_decomposition_with_a_side_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtbuild.stages.program.translations._NEVER_DECOMPOSED", frozenset())
    decomposition_table.cache_clear()
    try:
        with pytest.raises(ConversionRefused, match=r"has a side effect: aten\._linalg_check_errors\.default"):
            build(ModuleCase(module_from_text([], "torch.linalg.inv(x0)", 1), [("float32", [(1, 2, 3), 5, 5])]))
    finally:
        decomposition_table.cache_clear()


def test_size_1_is_allowed_if_only_an_unused_value_divides_by_zero() -> None:
    """With one sample, the running variance is divided by n - 1 = 0. No output depends on it."""
    body = (
        "torch.native_batch_norm(x0, torch.ones(4), torch.zeros(4), torch.zeros(4), torch.ones(4), True, 0.5, 1e-5)[0]"
    )
    case = ModuleCase(module_from_text([], body, 1), [("float32", [(1, 3, 8), 4])])
    assert not differences(case, build(case)).differences


def test_rrelu_in_eval_mode_is_deterministic() -> None:
    case = ModuleCase(module_from_text([], "F.rrelu(x0)", 1), [("float32", [(1, 3, 8), 8])])
    assert [part.kind for part in build(case).partitions.partitions] == ["tensorrt"]
    # the slope of negative numbers is the average of the default limits
    assert torch.equal(case.module(torch.tensor([[-1.0]])), torch.tensor([[-(1 / 8 + 1 / 3) / 2]]))
