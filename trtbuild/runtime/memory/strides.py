"""Plan the few copies that make a strided array contiguous. `cuda_memory` executes them.

A run is a sequence of neighbouring elements. One copy (``cuMemcpy2D``) handles several runs whose starts have an equal
distance, the pitch.

Rules
1. Axes of size 1 are ignored. Neighbouring axes that together have a constant step are joined to one axis.
2. One copy handles the runs along one axis, and each position on the other axes needs its own copy. The axis is the longest
   one whose pitch ``cuMemcpy2D`` accepts: at least the length of a run, and at most `_LARGEST_PITCH`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trtbuild.runtime.memory.dlpack import row_major

#: The largest pitch, in elements of at most 8 bytes. The driver's limit (``CU_DEVICE_ATTRIBUTE_MAX_PITCH``) is assumed to
#: be 2**31 - 1 bytes, the largest int.
_LARGEST_PITCH = (2**31 - 1) // 8


@dataclass(frozen=True)
class Rows:
    """A copy of `count` runs of `length` elements. The first run is copied from `source` to `target`. From run to run,
    `source_pitch` and `target_pitch` are added. The unit of all fields except `count` is one element."""

    target: int
    source: int
    length: int
    count: int = 1
    target_pitch: int = 0
    source_pitch: int = 0


def rows_of(shape: Sequence[int], strides: Sequence[int]) -> Iterator[Rows]:
    """Yield the copies that make an array contiguous. `strides` count elements, and may be negative."""
    if 0 in shape:
        return
    axes = _joined_axes(shape, strides)
    length = 1
    if axes and axes[-1].source_step == 1:
        length = axes.pop().size
    pitched_axes = (
        axis
        for axis in axes
        if length <= axis.source_step and max(axis.source_step, axis.target_step) <= _LARGEST_PITCH
    )
    row_axis = max(pitched_axes, key=lambda axis: axis.size, default=None)
    other_axes = [axis for axis in axes if axis is not row_axis]
    for index in itertools.product(*(range(axis.size) for axis in other_axes)):
        target = sum(i * axis.target_step for i, axis in zip(index, other_axes, strict=True))
        source = sum(i * axis.source_step for i, axis in zip(index, other_axes, strict=True))
        if row_axis is None:
            yield Rows(target, source, length)
        else:
            yield Rows(target, source, length, row_axis.size, row_axis.target_step, row_axis.source_step)


@dataclass(frozen=True, eq=False)
class _Axis:
    """An axis, with its steps in the array and in the contiguous copy."""

    size: int
    source_step: int
    target_step: int


def _joined_axes(shape: Sequence[int], strides: Sequence[int]) -> list[_Axis]:
    """Return the axes of rule 1."""
    axes: list[_Axis] = []
    for size, source, target in zip(shape, strides, row_major(tuple(shape)), strict=True):
        if size == 1:
            continue
        if axes and axes[-1].source_step == source * size:
            axes[-1] = _Axis(axes[-1].size * size, source, target)
        else:
            axes.append(_Axis(size, source, target))
    return axes
