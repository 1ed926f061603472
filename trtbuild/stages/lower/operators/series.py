"""Write ``expm1`` and ``log1p`` with a series near 0.

The ONNX translations are ``exp(x) - 1`` and ``log(x + 1)``, which lose all digits near 0: 1e-9 becomes 0. This pass
writes a series for small numbers, and these formulas for the others. Values of half precision are computed in
float32, as in PyTorch. Calls with float64 values do not change, because they stay in PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trtbuild.stages.lower.operators.calls import change_calls, insert_call, replace
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten

#: The series is used for numbers whose magnitude is below this limit. At the limit, the relative error of the series is
#: below 4e-8, and that of the formulas is 3e-6.
_END = 0.02
#: Operator → the coefficients of x, x², x³ and x⁴.
_SERIES = {
    _aten.expm1.default: (1.0, 1 / 2, 1 / 6, 1 / 24),
    _aten.special_expm1.default: (1.0, 1 / 2, 1 / 6, 1 / 24),
    _aten.log1p.default: (1.0, -1 / 2, 1 / 3, -1 / 4),
    _aten.special_log1p.default: (1.0, -1 / 2, 1 / 3, -1 / 4),
}
_TYPES = (torch.float32, torch.float16, torch.bfloat16)


def write_series(program: Program, request: Request) -> Program:
    return change_calls(program, frozenset(_SERIES), _write)


def _write(node: torch.fx.Node) -> None:
    def call(target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        return insert_call(node, target, *args, **kwargs)

    (source,) = node.args
    dtype, source_dtype = node.meta["val"].dtype, source.meta["val"].dtype
    if dtype not in _TYPES or source_dtype not in _TYPES:
        return
    x = source if dtype is torch.float32 else call(_aten._to_copy.default, source, dtype=torch.float32)
    if node.target._opname.endswith("expm1"):
        formula = call(_aten.sub.Tensor, call(_aten.exp.default, x), 1.0)
    else:
        formula = call(_aten.log.default, call(_aten.add.Tensor, x, 1.0))
    is_small = call(_aten.lt.Scalar, call(_aten.abs.default, x), _END)
    result = call(_aten.where.self, is_small, _polynomial(node, x, _SERIES[node.target]), formula)
    replace(node, result if dtype is torch.float32 else call(_aten._to_copy.default, result, dtype=dtype))


def _polynomial(node: torch.fx.Node, x: torch.fx.Node, coefficients: Sequence[float]) -> torch.fx.Node:
    """Write the polynomial of `x` without a constant term, in Horner's scheme."""
    *others, last = coefficients
    value: Any = insert_call(node, _aten.mul.Tensor, x, last)
    for coefficient in reversed(others):
        value = insert_call(node, _aten.mul.Tensor, x, insert_call(node, _aten.add.Tensor, value, coefficient))
    return value
