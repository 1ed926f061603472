"""Multiply and divide in float32 if half precision cannot represent the number.

PyTorch computes ``x * 1e5`` in float32 if x is in half precision, and rounds the result. The ONNX translation rounds the
number first: 1e5 becomes an infinity in float16, and 1e-8 becomes 0. Then ``(1 - mask) * -1e9`` is NaN where the mask
is 1. So this pass casts the tensor to float32, and the result back. Calls with other numbers do not change. Sums and
differences do not change, because PyTorch itself rounds their numbers on a CPU.

If the second operand of a product or a quotient is a float32 or float64 tensor without axes (``x * torch.tensor(-1e9)``),
it is such a number, too. Its value is not known here, so such a call is always computed in float32.

A comparison is the opposite: PyTorch rounds the number of ``x > 0.3`` to half precision, and the translation compares in
float32. So the number is rounded here.
"""

from __future__ import annotations

from typing import Any

import torch

from trtbuild.stages.half_types import HALF_TYPES
from trtbuild.stages.lower.operators.calls import change_calls, insert_call, replace
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
_OPERATORS = frozenset(
    (
        *(_aten.mul.Tensor, _aten.mul.Scalar, _aten.div.Tensor, _aten.div.Scalar),
        *(_aten.div.Tensor_mode, _aten.div.Scalar_mode, _aten.floor_divide.default, _aten.floor_divide.Scalar),
        *(_aten.remainder.Tensor, _aten.remainder.Scalar, _aten.fmod.Tensor, _aten.fmod.Scalar),
    )
)
_OPERATORS_OF_TENSORS = frozenset((_aten.mul.Tensor, _aten.div.Tensor))
_COMPARISONS = frozenset(
    (
        *(_aten.eq.Scalar, _aten.ne.Scalar, _aten.lt.Scalar),
        *(_aten.le.Scalar, _aten.gt.Scalar, _aten.ge.Scalar),
    )
)


def widen_for_numbers(program: Program, request: Request) -> Program:
    """Compute in float32 where half precision cannot represent a number. Returns the changed `program`."""
    return change_calls(program, _OPERATORS, _widen)


def round_compared_numbers(program: Program, request: Request) -> Program:
    """Return `program` with rounded numbers in its comparisons of half precision.

    Values that only ``precision`` computes in half keep the model's own numbers. So this pass comes before that one."""
    return change_calls(program, _COMPARISONS, _round)


def _round(node: torch.fx.Node) -> None:
    """Round the number of a comparison to the type of the tensor."""
    source, number = node.args
    dtype = source.meta["val"].dtype
    if dtype in HALF_TYPES and isinstance(number, int | float) and not isinstance(number, bool):
        node.args = (source, float(torch.tensor(number, dtype=torch.float64).to(dtype)))


def _widen(node: torch.fx.Node) -> None:
    source, number, *others = node.args
    dtype = node.meta["val"].dtype
    if dtype not in HALF_TYPES or not (_is_beyond(number, dtype) or _is_wide_tensor(number, node)):
        return
    if isinstance(number, torch.fx.Node) and number.meta["val"].dtype is not torch.float32:
        number = insert_call(node, _aten._to_copy.default, number, dtype=torch.float32)
    wide = insert_call(node, _aten._to_copy.default, source, dtype=torch.float32)
    result = insert_call(node, node.target, wide, number, *others, **node.kwargs)
    replace(node, insert_call(node, _aten._to_copy.default, result, dtype=dtype))


def _is_beyond(value: Any, dtype: torch.dtype) -> bool:
    """Whether `value` is a number that is too large or too small for `dtype`."""
    limits = torch.finfo(dtype)
    return isinstance(value, int | float) and (
        limits.max < abs(value) < float("inf") or 0 < abs(value) < limits.smallest_normal
    )


def _is_wide_tensor(value: Any, reader: torch.fx.Node) -> bool:
    """Whether `reader` multiplies or divides by `value`, and `value` is a float32 or float64 tensor without axes."""
    if not isinstance(value, torch.fx.Node) or reader.target not in _OPERATORS_OF_TENSORS:
        return False
    tensor = value.meta["val"]
    return isinstance(tensor, torch.Tensor) and tensor.dim() == 0 and tensor.dtype in (torch.float32, torch.float64)
