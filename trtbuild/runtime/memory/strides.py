"""Compute the few copies that make a strided array contiguous. Each copy handles one run of consecutive elements, or
several such runs at equal distances. `cuda_memory` executes the copies.

Rules
1. Axes of size 1 are ignored. Neighbouring axes that together have a constant step are joined to one axis.
2. One copy handles a run and its repetitions along one axis. This is the longest axis on which runs do not overlap, because
   ``cuMemcpy2D`` needs a pitch of at least one run. ``cuMemcpy2D`` also limits the pitch (`_LARGEST_PITCH`). Each position
   on the other axes needs its own copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trtbuild.runtime.memory.dlpack import row_major

#: The largest pitch of a copy, in elements. An element has at most 8 bytes, and the driver's limit in bytes
#: (``CU_DEVICE_ATTRIBUTE_MAX_PITCH``) is an int.
_LARGEST_PITCH = (2**31 - 1) // 8


@dataclass(frozen=True)
class Rows:
    """A copy of `count` runs of `length` elements. The first run is at `source`, and each later run begins `source_pitch`
    after the start of the run before it. The runs are written to `target`, with `target_pitch`. All fields except
    `count` are in elements."""

    target: int
    source: int
    length: int
    count: int = 1
    target_pitch: int = 0
    source_pitch: int = 0


def rows_of(shape: Sequence[int], strides: Sequence[int]) -> Iterator[Rows]:
    """Yield the copies that convert an array with `shape` and `strides` to a contiguous array. Strides count elements and
    may be negative."""
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
    """Return the axes of rule 1: without axes of size 1, and joined where possible."""
    axes: list[_Axis] = []
    for size, source, target in zip(shape, strides, row_major(tuple(shape)), strict=True):
        if size == 1:
            continue
        if axes and axes[-1].source_step == source * size:
            axes[-1] = _Axis(axes[-1].size * size, source, target)
        else:
            axes.append(_Axis(size, source, target))
    return axes
