"""Write out operators that compute the logarithm of a sum of exponentials: ``log_softmax`` and ``logsumexp``.

Rules
1. ``log_softmax(x)`` becomes ``x - max - log(sum(exp(x - max)))``. TensorRT's parser replaces ONNX's LogSoftmax by a
   softmax and a logarithm. The softmax of a number is 0 if the number is far below the largest one (about 100 below it in
   float32, 17 in float16). The logarithm is then -inf.
2. ``logsumexp(x)`` becomes ``log(sum(exp(x - max))) + max``. TensorRT 8.6 does not subtract the maximum, so the result for
   a number above 88 is infinite (measured on an H200). An infinite maximum becomes finite, because inf - inf is NaN.
3. Values of half precision are computed in float32, as in PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch

from trtbuild.stages.half_types import HALF_TYPES
from trtbuild.stages.lower.operators.calls import argument_of, change_calls, insert_call, replace
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
_LOG_SOFTMAX = frozenset((_aten.log_softmax.int, _aten._log_softmax.default, _aten.special_log_softmax.default))
_LOGSUMEXP = frozenset((_aten.logsumexp.default, _aten.special_logsumexp.default))


def write_out_log_sums(program: Program, request: Request) -> Program:
    return change_calls(change_calls(program, _LOG_SOFTMAX, _write_log_softmax), _LOGSUMEXP, _write_logsumexp)


def _write_log_softmax(node: torch.fx.Node) -> None:
    axis = node.args[1]
    x = _wide_source(node)
    if _is_empty(x):
        return
    if not node.meta["val"].dim():
        result = insert_call(node, _aten.sub.Tensor, x, x)  # the softmax of a single number is 1, its logarithm is 0
    else:
        shifted = insert_call(node, _aten.sub.Tensor, x, insert_call(node, _aten.amax.default, x, [axis], True))
        result = insert_call(node, _aten.sub.Tensor, shifted, _log_of_sum(node, shifted, [axis], keepdim=True))
    _replace_by_wide(node, result)


def _write_logsumexp(node: torch.fx.Node) -> None:
    axes, keepdim = argument_of(node, 1, "dim", []), argument_of(node, 2, "keepdim", False)
    x = _wide_source(node)
    if not x.meta["val"].dim() or _is_empty(x):
        return
    largest = torch.finfo(x.meta["val"].dtype).max

    def finite_maximum(keepdim: bool) -> torch.fx.Node:
        maximum = insert_call(node, _aten.amax.default, x, axes, keepdim)
        return insert_call(node, _aten.clamp.default, maximum, -largest, largest)

    maximum = finite_maximum(True)
    total = _log_of_sum(node, insert_call(node, _aten.sub.Tensor, x, maximum), axes, keepdim=keepdim)
    _replace_by_wide(node, insert_call(node, _aten.add.Tensor, total, maximum if keepdim else finite_maximum(False)))


def _is_empty(x: torch.fx.Node) -> bool:
    """Whether a tensor is known to have no elements. Such a tensor has no maximum."""
    return 0 in [size for size in x.meta["val"].shape if isinstance(size, int)]


def _log_of_sum(node: torch.fx.Node, shifted: torch.fx.Node, axes: list[int], *, keepdim: bool) -> torch.fx.Node:
    powers = insert_call(node, _aten.exp.default, shifted)
    return insert_call(node, _aten.log.default, insert_call(node, _aten.sum.dim_IntList, powers, axes, keepdim))


def _wide_source(node: torch.fx.Node) -> Any:
    """The operand of `node` in the type of its result, or in float32 for half precision (rule 3)."""
    source, wide = node.args[0], _wide_dtype(node)
    assert isinstance(source, torch.fx.Node)
    if source.meta["val"].dtype is wide:
        return source
    return insert_call(node, _aten._to_copy.default, source, dtype=wide)


def _replace_by_wide(node: torch.fx.Node, result: torch.fx.Node) -> None:
    dtype = node.meta["val"].dtype
    replace(
        node, result if _wide_dtype(node) is dtype else insert_call(node, _aten._to_copy.default, result, dtype=dtype)
    )


def _wide_dtype(node: torch.fx.Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return torch.float32 if dtype in HALF_TYPES else dtype
