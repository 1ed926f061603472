"""Write pooling with `ceil_mode` so that TensorRT computes the same windows and the same averages as PyTorch.

Rules
1. With `ceil_mode`, a last window may begin after the end of the input. PyTorch leaves this window out. TensorRT computes
   it, also in ONNX models, so its result has one more element. If the model then takes the mean or the maximum of the
   result, no shape differs, and only the numbers are wrong. If `ceil_mode` adds no window to any axis in PyTorch, this pass
   sets it to False.
2. A last window may end after the padding. PyTorch divides its sum by the number of input and padding elements in the
   window. With TensorRT 8.6 on an H200, such averages were wrong by up to a third. Averages that count only input elements
   were right. So this pass makes the padding a part of the input.

If the padding is a part of the input, a window may begin in this part, and the result has one more element. Rule 2 does not
change calls with such a window, or with dynamic sizes. They stay in PyTorch.
"""

from __future__ import annotations

import torch

from trtbuild.stages.lower.operators.calls import argument_of, change_calls, insert_call
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
#: Operator → the number of axes of a window.
_AXES = {_aten.avg_pool1d.default: 1, _aten.avg_pool2d.default: 2, _aten.avg_pool3d.default: 3}
_MAXIMUM_AXES = {
    _aten.max_pool1d.default: 1,
    _aten.max_pool2d.default: 2,
    _aten.max_pool3d.default: 3,
    _aten.max_pool1d_with_indices.default: 1,
    _aten.max_pool2d_with_indices.default: 2,
    _aten.max_pool3d_with_indices.default: 3,
}


def write_out_padding(program: Program, request: Request) -> Program:
    program = change_calls(program, frozenset(_AXES) | frozenset(_MAXIMUM_AXES), _drop_ceil_mode)
    return change_calls(program, frozenset(_AXES), _write)


def _drop_ceil_mode(node: torch.fx.Node) -> None:
    """Apply rule 1."""
    is_maximum = node.target in _MAXIMUM_AXES
    axes, position = (_MAXIMUM_AXES[node.target], 5) if is_maximum else (_AXES[node.target], 4)
    if not argument_of(node, position, "ceil_mode", False):
        return
    source, kernel = node.args[:2]
    stride = argument_of(node, 2, "stride", []) or kernel
    padding = argument_of(node, 3, "padding", []) or [0]
    dilation = argument_of(node, 4, "dilation", [1]) if is_maximum else [1]
    kernel, stride, padding, dilation = (
        list(values) * (axes if len(values) == 1 else 1) for values in (kernel, stride, padding, dilation)
    )
    value = node.meta["val"]
    sizes, counts = source.meta["val"].shape[-axes:], (value[0] if isinstance(value, tuple) else value).shape[-axes:]
    if any(
        not isinstance(size, int) or (size + 2 * amount - factor * (width - 1) - 1) // step + 1 != count
        for size, amount, factor, width, step, count in zip(
            sizes, padding, dilation, kernel, stride, counts, strict=True
        )
    ):
        return
    if len(node.args) > position:
        node.update_arg(position, False)
    else:
        node.update_kwarg("ceil_mode", False)


def _write(node: torch.fx.Node) -> None:
    """Apply rule 2."""
    source, kernel = node.args[:2]
    stride = argument_of(node, 2, "stride", []) or kernel
    padding = argument_of(node, 3, "padding", []) or [0]
    is_ceil_mode = argument_of(node, 4, "ceil_mode", False)
    counts_padding = argument_of(node, 5, "count_include_pad", True)
    if not (is_ceil_mode and counts_padding) or argument_of(node, 6, "divisor_override", None) is not None:
        return
    axes = _AXES[node.target]
    padding, kernel, stride = (list(values) * (axes if len(values) == 1 else 1) for values in (padding, kernel, stride))
    sizes, counts = source.meta["val"].shape[-axes:], node.meta["val"].shape[-axes:]
    padded = [size + 2 * amount for size, amount in zip(sizes, padding, strict=True)]
    if any(
        not isinstance(size, int) or _window_count(size, kernel_size, step) != count
        for size, kernel_size, step, count in zip(padded, kernel, stride, counts, strict=True)
    ):
        return  # a dynamic size, or a window that PyTorch leaves out because it begins after the input
    if any(padding):
        amounts = [amount for axis in reversed(padding) for amount in (axis, axis)]
        source = insert_call(node, _aten.constant_pad_nd.default, source, amounts, 0.0)
    node.args = (source, kernel, stride, [0] * axes, True, False)
    node.kwargs = {}


def _window_count(size: int, kernel_size: int, step: int) -> int:
    # `ceil_mode` rounds up
    return -((kernel_size - size) // step) + 1
