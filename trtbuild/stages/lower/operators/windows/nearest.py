"""Write interpolation with the modes ``nearest`` and ``nearest-exact`` as a selection of elements.

PyTorch (``UpSample.h``, ``nearest_neighbor_compute_source_index``) multiplies the index of an output element by a float32
factor and rounds down. ONNX's Resize divides the index by the scale in float32. If the exact result is a whole number, the
two may select different elements: with ``scale_factor=1.2``, PyTorch copies input element 15 to output element 18, and
Resize copies 14. With TensorRT 8.6 on an H200, Resize by 1.7 selected other elements than PyTorch, probably because
TensorRT used the quotient of the sizes.

Rules
1. The factor of an axis is ``1 / scale`` if the call has a scale, and ``size / count`` otherwise. `size` and `count`
   are the numbers of input and output elements.
2. A call with the mode ``nearest`` does not change if all ways to compute its elements and its output size agree, on every
   axis. They agree for whole scales up to 40 and for the scale 0.5. The ONNX exporter translates the unchanged calls to
   Resize.
3. ``nearest-exact`` adds 0.5 to the index. The ONNX exporter cannot translate this mode, so its calls become selections
   or stay in PyTorch. PyTorch's CPU kernel subtracts 0.5 and adds 0.5 again, so for one of a thousand pairs of sizes it
   selects other elements than the GPU kernel. A call stays in PyTorch if its sizes may be such a pair, or are too many to
   try. An axis with two dynamic sizes and no scale is an exception: it gets the elements of the GPU kernel.
4. A call whose sizes depend on data does not change.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true

from trtbuild.stages.lower.operators.calls import argument_of, change_calls, insert_call, replace
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.symbols import Symbols

_aten = torch.ops.aten
#: Operator → whether the mode is ``nearest-exact``.
_TARGETS: Mapping[Any, bool] = {
    overload: is_exact
    for is_exact, packets in (
        (False, (_aten.upsample_nearest1d, _aten.upsample_nearest2d, _aten.upsample_nearest3d)),
        (
            True,
            (_aten._upsample_nearest_exact1d, _aten._upsample_nearest_exact2d, _aten._upsample_nearest_exact3d),
        ),
    )
    for packet in packets
    for overload in (packet.default, packet.vec)
}
#: The ways to compute the elements of a dynamic axis are compared for sizes below this one. An axis without a scale in the
#: mode ``nearest-exact`` is compared for all its sizes, but not at all if their range is longer than this.
_LARGEST_SIZE = 4096
#: The ratios of two dynamic sizes that `_is_unambiguous` looks for.
_MULTIPLES = range(1, 17)


def select_nearest(program: Program, request: Request) -> Program:
    symbols = Symbols(program)
    return change_calls(program, frozenset(_TARGETS), lambda node: _write(node, symbols))


def _write(node: torch.fx.Node, symbols: Symbols) -> None:
    source, is_exact = node.args[0], _TARGETS[node.target]
    sizes, counts = source.meta["val"].shape[2:], node.meta["val"].shape[2:]
    if free_unbacked_symbols([*sizes, *counts]):
        return
    scales = _scales(node, len(sizes))
    axes = zip(sizes, counts, scales, strict=True)
    if is_exact and not all(_cpu_and_gpu_agree_on_axis(*axis, symbols) for axis in axes):
        return
    if not is_exact and all(map(_is_unambiguous, sizes, counts, scales)):
        return
    result = source
    for axis, (count, scale) in enumerate(zip(_counts(node, scales), scales, strict=True), 2):
        result = insert_call(node, _aten.index_select.default, result, axis, _elements(node, axis, count, scale))
    result.meta["val"] = node.meta["val"]  # torch may write an equal size in another way
    replace(node, result)


def _elements(node: torch.fx.Node, axis: int, count: Any, scale: float | None) -> torch.fx.Node:
    """The index of the input element for each of `count` output elements."""

    def call(target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        return insert_call(node, target, *args, **kwargs)

    device = node.meta["val"].device
    size = _size(node, axis)
    factor = 1.0 / scale if scale is not None else _quotient(node, size, count)
    places = call(_aten.arange.default, count, dtype=torch.float32, device=device, pin_memory=False)
    if _TARGETS[node.target]:
        places = call(_aten.add.Tensor, places, 0.5)
    elements = call(_aten._to_copy.default, call(_aten.mul.Tensor, places, factor), dtype=torch.int64)
    if scale is None or node.target._overloadname == "vec":
        return elements
    last = call(operator.sub, size, 1) if isinstance(size, torch.fx.Node) else size - 1
    return call(_aten.clamp.default, elements, None, last)  # `count` may be larger than `size * scale`


def _size(node: torch.fx.Node, axis: int) -> Any:
    size = node.args[0].meta["val"].shape[axis]
    return size if isinstance(size, int) else insert_call(node, _aten.sym_size.int, node.args[0], axis)


def _quotient(node: torch.fx.Node, size: Any, count: Any) -> Any:
    if isinstance(size, int) and isinstance(count, int):
        return size / count
    return insert_call(node, operator.truediv, size, count)


def _counts(node: torch.fx.Node, scales: Sequence[float | None]) -> list[Any]:
    sizes = argument_of(node, 1, "output_size", None)
    if sizes is not None:
        return list(sizes)
    counts: list[Any] = list(node.meta["val"].shape[2:])
    for position, (count, scale) in enumerate(zip(counts, scales, strict=True)):
        if not isinstance(count, int):
            axis = position + 2  # the first two axes are not interpolated
            size = insert_call(node, torch.sym_float, _size(node, axis))
            counts[position] = insert_call(node, math.trunc, insert_call(node, operator.mul, size, scale))
    return counts


def _scales(node: torch.fx.Node, axis_count: int) -> list[float | None]:
    """The scale of each axis. PyTorch ignores scales that are not positive."""
    if node.target._overloadname == "vec":
        scales = argument_of(node, 2, "scale_factors", None) or [None] * axis_count
    else:
        names = [argument.name for argument in node.target._schema.arguments][2:]
        scales = [argument_of(node, number, name, None) for number, name in enumerate(names, 2)]
    return [scale if scale is not None and scale > 0 else None for scale in scales]


def _is_unambiguous(size: Any, count: Any, scale: float | None) -> bool:
    """Whether all ways to compute the elements of an axis agree (rule 2)."""
    has_known_sizes = isinstance(size, int) and isinstance(count, int)
    if scale is not None and has_known_sizes:
        if count != math.floor(size * scale):
            return False  # the overload `default` has both, and its ONNX translation uses the output size only
        return _scale_agrees(scale, count) and _quotient_agrees_with_scale(size, count, scale)
    if scale is not None:
        agrees = _sizes_agree(scale) and _scale_agrees(scale, math.ceil(_LARGEST_SIZE * scale))
        return agrees and _every_quotient_agrees_with_scale(scale)
    if has_known_sizes:
        return _quotient_agrees(size, count)
    for multiple in _MULTIPLES:
        if statically_known_true(count == multiple * size):
            return _scale_agrees(float(multiple), multiple * _LARGEST_SIZE)
        if statically_known_true(size == multiple * count):
            return True  # the factor is a whole number
    return False


def _cpu_and_gpu_agree_on_axis(size: Any, count: Any, scale: float | None, symbols: Symbols) -> bool:
    """Whether an axis of a ``nearest-exact`` call can be written as a selection (rule 3)."""
    if scale is not None:
        length = count if isinstance(count, int) else math.ceil(_LARGEST_SIZE * scale)
        return _cpu_and_gpu_agree(1.0 / scale, length)
    if not isinstance(size, int) and not isinstance(count, int):
        return True
    (first_size, last_size), (first_count, last_count) = symbols.interval(size), symbols.interval(count)
    if max(last_size - first_size, last_count - first_count) > _LARGEST_SIZE:
        return False
    return all(
        _cpu_and_gpu_agree(one_size / one_count, one_count)
        for one_size in range(first_size, last_size + 1)
        for one_count in range(first_count, last_count + 1)
    )


@functools.lru_cache(maxsize=4096)
def _cpu_and_gpu_agree(factor: float, count: int) -> bool:
    """Whether both kernels of ``nearest-exact`` select the same elements for `count` output elements (rule 3)."""
    places, narrow = torch.arange(count, dtype=torch.float32) + 0.5, torch.tensor(factor, dtype=torch.float32)
    product = places * narrow
    fused = (places.double() * narrow.double() - 0.5).float()  # a CPU may multiply and subtract with one rounding
    expected = product.floor()
    ways = (product - 0.5 + 0.5, fused + 0.5)
    return all(bool(torch.equal(expected, way.floor())) for way in ways)


@functools.lru_cache(maxsize=256)
def _scale_agrees(scale: float, count: int) -> bool:
    """Whether PyTorch and Resize select the exact elements for a scale and `count` output elements."""
    places = torch.arange(count, dtype=torch.float32)
    narrow = torch.tensor(scale, dtype=torch.float32)
    ways = (places * (1.0 / scale), places / narrow)
    exact = (places.double() / scale).floor()
    return all(bool(torch.equal(way.floor().double(), exact)) for way in ways)


def _every_quotient_agrees_with_scale(scale: float) -> bool:
    """Whether the quotient of the sizes selects the same elements as the scale, for every size of a dynamic axis.

    With the scale 0.5, the quotient is 2 for an even size. For an odd size it is larger, but the index times the quotient
    exceeds the index times 2 by less than one, so rounding down gives the same element.
    """
    return scale.is_integer() or scale == 0.5


def _quotient_agrees_with_scale(size: int, count: int, scale: float) -> bool:
    places = torch.arange(count)
    return bool(torch.equal(places * size // count, (places.double() / scale).floor().long())) if count else True


@functools.lru_cache(maxsize=256)
def _sizes_agree(scale: float) -> bool:
    """Whether float32, in which Resize computes, gives PyTorch's output size for the input sizes below
    `_LARGEST_SIZE`."""
    sizes = torch.arange(1, _LARGEST_SIZE)
    narrow = sizes.float() * torch.tensor(scale, dtype=torch.float32)
    return bool(torch.equal(narrow.floor().double(), (sizes.double() * scale).floor()))


@functools.lru_cache(maxsize=256)
def _quotient_agrees(size: int, count: int) -> bool:
    """Whether all ways to compute the elements from the quotient of the sizes select the exact elements."""
    places = torch.arange(count, dtype=torch.float32)
    scale = torch.tensor(count, dtype=torch.float32) / torch.tensor(size, dtype=torch.float32)
    exact = torch.arange(count) * size // count
    ways = (places * (size / count), places / scale, places * (1 / scale))
    return all(bool(torch.equal(way.floor().long(), exact)) for way in ways)
