"""Find calls whose ONNX translation is wrong (exporter of torch 2.13), or which TensorRT computes in another way than
PyTorch. These calls stay in PyTorch:

1. Negative padding in the modes reflect, replicate and circular: ONNX's Pad can remove elements only in the mode constant.
2. Batch normalization by the statistics of the batch in a module that has running statistics: the translation uses the
   running statistics.
3. Average pooling with `divisor_override`: ONNX's AveragePool has no such attribute. Average pooling with `ceil_mode` and
   `count_include_pad`: TensorRT gives other averages, so the lower step rewrites most such calls.
4. Repeating each element a dynamic number of times: the translation puts the copies on the wrong axis.
5. Scattering with the reduction mean: ONNX's ScatterElements does not have it. Scattering with the reduction amax or amin
   and ``include_self=False``: the translation begins with the lowest (amin: largest) number, not with -inf (inf).
6. atan2: the translation divides, so a negative zero in the denominator reverses the sign.
7. logcumsumexp: the translation subtracts the largest element of the axis, then computes `exp`. If `exp` gives 0 for all
   elements up to a position, the result at this position is -inf.
8. erfc and erfcx: the translation computes 1 - erf, so a small result has no correct digits.
9. diagonal: the translation multiplies the elements outside the diagonal by 0, so infinities become NaN. The lower
   step rewrites the calls whose result is never empty.
10. ELU with an input scale: the translation scales positive elements, too.
11. Interpolation by a scale that is not the quotient of the sizes: the translation uses the quotient.
12. Interpolation of a dynamic axis by a scale like 0.7: ONNX computes the new size with float32, and PyTorch with float64.
    For the size 90, ONNX gives 63 instead of 62.
13. A size that is rounded from a float: the translation computes with float32, and Python with float64. The lower step
    rewrites a size times a fraction such as 0.5, so that only whole numbers are computed.
14. Clamping by a bound that is NaN: the result is NaN everywhere in PyTorch. ONNX ignores the bound.
15. The angle of complex numbers: the translation divides, as for atan2.
16. Interpolation with `antialias` and `align_corners`, and cross entropy with `label_smoothing`: the results differ.
17. ``x // y``, ``x % y`` and `fmod` of floats: PyTorch computes the exact remainder first. The translations divide and
    round the quotient, and TensorRT's parser does so for ONNX's Mod, too. For ``1.0 // 0.1``, they give 10 instead of 9.
    The results are equal if y is a number such as 1, 2 or 16 (and x is finite), because the quotient is exact.
18. Pooling with `ceil_mode`, if PyTorch leaves out a last window that begins after the input: TensorRT computes it. The
    lower step removes `ceil_mode` where that gives the same windows.
19. Sorts of more than 3840 elements, and `topk` with a larger k. TensorRT's TopK gives at most 3840 elements, but its
    parser accepts such calls. If the number is static, the engine cannot be built. If it is dynamic, the engine is built,
    even for a profile above the limit.
20. `grid_sample` in the mode nearest: if a place is exactly between two elements, TensorRT selects another one than
    PyTorch. In the mode bicubic with the padding border, TensorRT's results differ at most places. With five axes,
    TensorRT ends the process: it samples images only. (All measured with TensorRT 8.6.)
21. signbit: the translation compares with 0, so the sign of a negative zero is lost.
22. Variance with a correction above the number of elements: PyTorch divides by a number of at least 0, and the translation
    by a negative number. Variance with a correction below 0: the translation ignores the correction.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trtbuild.stages.topk_limit import may_exceed_topk_limit

#: Operators that stay in PyTorch for all arguments (6 to 9, 21).
_ALWAYS_WRONG = frozenset((
    "atan2", "logcumsumexp", "erfc", "special_erfc", "special_erfcx", "diagonal", "diagonal_copy",
    "signbit",
))  # fmt: skip

_ROUNDING_FUNCTIONS = frozenset((math.trunc, math.floor, math.ceil))
#: `_rounds_differently` tries all sizes below this limit.
_SIZE_LIMIT = 4096
#: Operators whose translation ignores the scales, except in the overload `vec` (11).
_INTERPOLATIONS = frozenset((
    "upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
))  # fmt: skip
#: Operators that compute a remainder, or a quotient from a remainder (17).
_REMAINDERS = frozenset(("floor_divide", "fmod", "remainder"))

#: Operators with a correction, which is subtracted from the number of elements (22).
_VARIANCES = frozenset(("var", "std", "var_mean", "std_mean"))


def is_mistranslated(node: torch.fx.Node) -> bool:
    """Whether the translation of a call_function node may give other results than the call, or cannot run. The comments
    have the numbers of the list in the module's docstring."""
    if node.target in _ROUNDING_FUNCTIONS:  # 13
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    name, arguments = node.target._opname, _arguments(node)
    if name.startswith(("replication_pad", "reflection_pad")):  # 1
        return _has_negative(arguments.get("padding"))
    if name == "pad":  # 1
        return arguments.get("mode", "constant") != "constant" and _has_negative(arguments.get("pad"))
    if "_pool" in name and arguments.get("ceil_mode") and _may_leave_out_windows(node, arguments):  # 18
        return True
    if name.startswith("avg_pool"):  # 3
        counts_padding = arguments.get("count_include_pad", True)
        return arguments.get("divisor_override") is not None or bool(arguments.get("ceil_mode") and counts_padding)
    if name in _ALWAYS_WRONG:  # 6 to 9, 21
        return True
    if name == "angle":  # 15
        return bool(node.args[0].meta["val"].is_complex())
    if name == "elu":  # 10
        return bool(arguments.get("input_scale", 1) != 1)
    if name == "cross_entropy_loss":  # 16
        return bool(arguments.get("label_smoothing", 0) != 0)
    if name.endswith("_aa") and arguments.get("align_corners"):  # 16
        return True
    if name in _INTERPOLATIONS and _has_another_scale(node, arguments):  # 11
        return True
    if name in _INTERPOLATIONS or name.startswith("upsample_nearest"):  # 12
        return _gives_other_sizes(node, arguments)
    if name == "repeat_interleave":  # 4
        return isinstance(arguments.get("repeats"), torch.fx.Node)
    if name == "scatter_reduce":  # 5
        without_target = arguments.get("include_self") is False and arguments.get("reduce") in ("amax", "amin")
        return arguments.get("reduce") == "mean" or without_target
    if name in _REMAINDERS or (name == "div" and arguments.get("rounding_mode") == "floor"):  # 17
        return bool(node.meta["val"].dtype.is_floating_point) and not _is_exact_divisor(node.args[1])
    if name.startswith("grid_sampler"):  # 20
        mode, padding = arguments.get("interpolation_mode"), arguments.get("padding_mode")
        return bool(mode == 1 or (mode == 2 and padding == 1) or node.args[0].meta["val"].dim() != 4)
    if name in ("sort", "topk"):  # 19
        shape = node.args[0].meta["val"].shape
        axis_size = shape[arguments.get("dim", -1)] if shape else 1
        return may_exceed_topk_limit(arguments["k"] if name == "topk" else axis_size)
    if name.startswith("clamp"):  # 14
        return any(isinstance(bound, float) and math.isnan(bound) for bound in arguments.values())
    if name in _VARIANCES:  # 22
        return _has_unusual_correction(node, arguments)
    if "batch_norm" in name:  # 2
        return arguments.get("training") is True and arguments.get("running_mean") is not None
    return False


def _has_negative(amounts: Sequence[Any] | None) -> bool:
    return any(isinstance(amount, int) and amount < 0 for amount in amounts or ())


def _has_unusual_correction(node: torch.fx.Node, arguments: Mapping[str, Any]) -> bool:
    """Whether the correction is below 0, or may be above the number of elements. A dynamic size is at least 1."""
    correction = arguments.get("correction")
    if correction is None:
        return False
    if not isinstance(correction, int | float):
        return True  # it depends on a size
    if 0 <= correction <= 1:
        return False
    shape = node.args[0].meta["val"].shape
    axes = arguments.get("dims") or arguments.get("dim")
    sizes = [shape[axis] for axis in axes or range(len(shape))] if shape else []
    smallest_count = math.prod(size if isinstance(size, int) else 1 for size in sizes)
    return bool(correction < 0 or correction > smallest_count)


def _may_leave_out_windows(node: torch.fx.Node, arguments: Mapping[str, Any]) -> bool:
    """Whether a pooling with `ceil_mode` may have fewer windows than TensorRT computes. For a dynamic axis, the answer is
    False if the stride is so small that the last window begins in the input at every size."""
    value = node.meta["val"]
    axes = next(int(letter) for letter in node.target._opname if letter.isdigit())
    counts = (value[0] if isinstance(value, tuple) else value).shape[-axes:]
    sizes = node.args[0].meta["val"].shape[-axes:]
    kernel = arguments["kernel_size"]
    rows = [kernel, arguments.get("stride") or kernel, arguments.get("padding", [0]), arguments.get("dilation", [1])]
    rows = [list(values) * (axes if len(values) == 1 else 1) for values in rows]
    for size, count, width, step, padding, dilation in zip(sizes, counts, *rows, strict=True):
        width = dilation * (width - 1) + 1  # with the gaps between its elements
        if isinstance(size, int):
            if -((width - size - 2 * padding) // step) + 1 != count:
                return True
        elif step > width - padding:
            return True
    return False


def _is_exact_divisor(divisor: Any) -> bool:
    """Whether a divisor without its sign is a power of two of at least 1. The quotient by such a divisor is exact."""
    return isinstance(divisor, int | float) and abs(divisor) >= 1 and abs(math.frexp(divisor)[0]) == 0.5


def _has_another_scale(node: torch.fx.Node, arguments: Mapping[str, Any]) -> bool:
    """Whether a scale of an interpolation may differ from the quotient of the sizes. With `align_corners`, PyTorch ignores
    the scales. The translation of the overload `vec` uses the scales."""
    if arguments.get("align_corners") or "scale_factors" in arguments:
        return False
    sizes = zip(node.args[0].meta["val"].shape[2:], node.meta["val"].shape[2:], strict=True)
    pairs = zip(_scales(node, arguments), sizes, strict=True)
    return any(not _is_quotient(scale, before, after) for scale, (before, after) in pairs)


def _gives_other_sizes(node: torch.fx.Node, arguments: Mapping[str, Any]) -> bool:
    """Whether ONNX may compute another size than PyTorch for a dynamic axis. (Static sizes are compared after the
    conversion.)"""
    scales = arguments.get("scale_factors") or _scales(node, arguments)
    sizes = node.args[0].meta["val"].shape[2:]
    return any(
        isinstance(scale, float) and not isinstance(size, int) and _rounds_differently(scale)
        for scale, size in zip(scales, sizes, strict=True)
    )


@functools.cache
def _rounds_differently(scale: float) -> bool:
    sizes = range(1, _SIZE_LIMIT)
    narrow = torch.tensor(sizes, dtype=torch.float32) * torch.tensor(scale, dtype=torch.float32)
    return bool(narrow.floor().long().tolist() != [math.floor(size * scale) for size in sizes])


def _is_quotient(scale: Any, before: Any, after: Any) -> bool:
    """Whether a scale is absent, or the quotient of the sizes of an axis. If a size is dynamic, the scale must be a whole
    number, because ``F.interpolate`` rounds the new size otherwise."""
    if isinstance(scale, int | float) and isinstance(before, int) and isinstance(after, int):
        return bool(after == before * scale)
    return scale is None or (isinstance(scale, int | float) and float(scale).is_integer())


def _scales(node: torch.fx.Node, arguments: Mapping[str, Any]) -> list[Any]:
    """The scales of the axes, None where a call has no scale."""
    if "scale_factors" in _names(node):
        return [None] * (node.meta["val"].dim() - 2)
    return [arguments.get(name) for name in ("scales", "scales_d", "scales_h", "scales_w") if name in _names(node)]


def _names(node: torch.fx.Node) -> list[str]:
    return [argument.name for argument in node.target._schema.arguments]


def _arguments(node: torch.fx.Node) -> Mapping[str, Any]:
    """Name in the operator's schema → argument of a call. Omitted arguments are absent."""
    return dict(zip(_names(node), node.args, strict=False)) | dict(node.kwargs)
