"""Lowered attention equals eager attention, in torch and in ONNX, also in rows whose keys are all masked."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from trtbuild.stages.convert.conversion import convert

_TOLERANCE = {"float32": 1e-6, "float16": 5e-3, "bfloat16": 4e-2}
_S = Dim("s", min=2, max=64)
_DIMS = ({2: _S},) * 3


class Attention(nn.Module):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self.kwargs = kwargs

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.kwargs)


def _qkv(group_size: int = 1) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values. `group_size` heads of the queries share a head of the keys and values."""
    torch.manual_seed(3)
    return torch.randn(3, 2 * group_size, 5, 8) * 3, torch.randn(3, 2, 5, 8) * 3, torch.randn(3, 2, 5, 8)


def _mask(kind: str) -> torch.Tensor:
    """A boolean mask (kind ``bool``), or a mask that adds -inf, the minimum of float32, -1e9 or -1e4."""
    allowed = torch.ones(3, 1, 5, 5, dtype=torch.bool)
    allowed[0, :, :, 3:] = False
    allowed[1] = False  # every row is masked entirely
    allowed[2, :, 1] = False
    if kind == "bool":
        return allowed
    value = {"inf": -torch.inf, "min": torch.finfo().min, "large": -1e9, "small": -1e4}[kind]
    return torch.zeros(3, 1, 5, 5).masked_fill(~allowed, value)


def _run_onnx(model: bytes, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    session = onnxruntime.InferenceSession(model)
    feeds = {i.name: value.numpy() for i, value in zip(session.get_inputs(), inputs, strict=True)}
    return torch.from_numpy(np.asarray(session.run(None, feeds)[0]))


def _assert_close(result: torch.Tensor, expected: torch.Tensor, precision: str) -> None:
    assert torch.equal(result.isnan(), expected.isnan())
    assert (result - expected).abs().max() / expected.abs().max() <= _TOLERANCE[precision]


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kinds", [("bool",), ("inf", "min", "large", "small")])
def test_rows_that_are_masked_entirely_equal_eager(lower_module: Any, kinds: tuple[str, ...], precision: str) -> None:
    inputs = (*_qkv(), _mask(kinds[0]))
    traced, program = lower_module(Attention(), inputs, precision, (*_DIMS, {2: _S, 3: _S}))
    model = None if precision == "bfloat16" else convert(program, 20).model  # onnxruntime has no bfloat16 on the CPU
    for kind in kinds:
        traced.inputs = (*inputs[:3], _mask(kind))
        expected = traced.eager()[0]
        # PyTorch returns 0 for a row that False or -inf masks entirely, and an average if a finite number masks the row
        assert (expected[1] == 0).all() == (kind in ("bool", "inf"))
        _assert_close(traced.run(program)[0], expected, precision)
        if model is not None:
            _assert_close(_run_onnx(model, traced.inputs), expected, precision)


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize(
    ("kwargs", "group_size"),
    [
        ({"scale": 0.1}, 1),
        ({"scale": -0.1}, 1),
        ({"enable_gqa": True}, 2),
        ({"enable_gqa": True, "is_causal": True}, 2),
    ],
)
def test_causal_scaled_and_grouped_attention_equals_eager(
    lower_module: Any, kwargs: dict[str, Any], group_size: int, precision: str
) -> None:
    inputs = _qkv(group_size)
    traced, program = lower_module(Attention(**kwargs), inputs, precision, _DIMS)
    _assert_close(traced.run(program)[0], traced.eager()[0], precision)
    _assert_close(_run_onnx(convert(program, 20).model, inputs), traced.eager()[0], precision)


def test_attention_without_a_mask_is_written_out_only_in_half(lowered: Any, calls: Any) -> None:
    assert "scaled_dot_product_attention.default" in calls(lowered("sdpa"))
    program = lowered("sdpa", "float16")
    dtypes = {
        str(node.target): node.meta["val"].dtype
        for node in program.graph.nodes
        if node.op == "call_function" and isinstance(node.meta["val"], torch.Tensor)
    }
    assert dtypes["aten.softmax.int"] is torch.float32
    assert dtypes["aten.matmul.default"] is torch.float16


def test_masked_attention_with_a_negative_scale_equals_eager(lower_module: Any) -> None:
    inputs = (*_qkv(), _mask("bool"))
    traced, program = lower_module(Attention(scale=-0.1), inputs, "float32", (*_DIMS, {2: _S, 3: _S}))
    _assert_close(_run_onnx(convert(program, 20).model, inputs), traced.eager()[0], "float32")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    ("kwargs", "mask_kind"),
    [({"scale": -0.1}, None), ({}, "bool"), ({}, "inf"), ({}, "min"), ({"scale": -0.1}, "bool")],
)
def test_attention_of_tensors_that_are_not_float32_equals_eager(
    lower_module: Any, dtype: torch.dtype, kwargs: dict[str, Any], mask_kind: str | None
) -> None:
    """The manifest's precision is float32, and `dtype` is the type of the user's tensors."""
    inputs = [value.to(dtype) for value in _qkv()]
    if mask_kind is not None:
        mask = _mask(mask_kind)
        if mask_kind == "min" and dtype is not torch.float64:
            mask = mask.clamp(min=torch.finfo(dtype).min)  # otherwise the cast would give -inf
        inputs.append(mask if mask_kind == "bool" else mask.to(dtype))
    traced, program = lower_module(Attention(**kwargs), inputs, "float32", (*_DIMS, {2: _S, 3: _S})[: len(inputs)])
    (expected,), (result,) = traced.eager(), traced.run(program)
    assert result.dtype == dtype
    tolerance = {torch.float64: "float32"}.get(dtype, str(dtype).removeprefix("torch."))
    _assert_close(result, expected, tolerance)
    if dtype is not torch.bfloat16:
        _assert_close(_run_onnx(convert(program, 20).model, tuple(inputs)), expected, tolerance)


class Branches(nn.Module):
    """Attention in a nested graph."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self.attention = Attention(**kwargs)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.cond(q.sum() < 1e9, self.attention.forward, lambda q, k, v, mask: v + 0, (q, k, v, mask))


@pytest.mark.parametrize("kwargs", [{}, {"scale": -0.1}])
def test_attention_in_a_nested_graph_equals_eager(lower_module: Any, kwargs: dict[str, Any]) -> None:
    inputs = (*_qkv(), _mask("bool"))
    traced, program = lower_module(Branches(**kwargs), inputs, "float32")
    _assert_close(traced.run(program)[0], traced.eager()[0], "float32")
    _assert_close(_run_onnx(convert(program, 20).model, inputs), traced.eager()[0], "float32")
