"""Copy a strided array with few copies: runs of consecutive elements, and rows of such runs.

Rules
1. Axes of size 1 do not count, and axes that together have a constant step are joined to one axis.
2. One copy handles a run, and its repetitions along one axis: the longest axis on which runs do not overlap
   (``cuMemcpy2D`` needs a pitch of at least a row, and limits the pitch). Each position on the other axes needs its own
   copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trtbuild.runtime.memory.dlpack import row_major

#: The largest pitch of a copy, in elements. An element has at most 8 bytes, and the driver's limit in bytes
#: (``CU_DEVICE_ATTRIBUTE_MAX_PITCH``) is an int.
_MOST_PITCH = (2**31 - 1) // 8


@dataclass(frozen=True)
class Rows:
    """A copy of `count` runs of `length` elements. The first run is at `source`, and each later run is `source_pitch` after
    the run before it. The copies are at `target`, with `target_pitch`. All numbers count elements."""

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
    axes = _joined(shape, strides)
    length = 1
    if axes and axes[-1].source == 1:
        length = axes.pop().size
    pitched = (axis for axis in axes if length <= axis.source and max(axis.source, axis.target) <= _MOST_PITCH)
    repeated = max(pitched, key=lambda axis: axis.size, default=None)
    other_axes = [axis for axis in axes if axis is not repeated]
    for index in itertools.product(*(range(axis.size) for axis in other_axes)):
        target = sum(i * axis.target for i, axis in zip(index, other_axes, strict=True))
        source = sum(i * axis.source for i, axis in zip(index, other_axes, strict=True))
        if repeated is None:
            yield Rows(target, source, length)
        else:
            yield Rows(target, source, length, repeated.size, repeated.target, repeated.source)


@dataclass(frozen=True, eq=False)
class _Axis:
    """An axis, with its steps in the array and in the contiguous copy."""

    size: int
    source: int
    target: int


def _joined(shape: Sequence[int], strides: Sequence[int]) -> list[_Axis]:
    """The axes after rule 1 is applied."""
    axes: list[_Axis] = []
    for size, source, target in zip(shape, strides, row_major(tuple(shape)), strict=True):
        if size == 1:
            continue
        if axes and axes[-1].source == source * size:
            axes[-1] = _Axis(axes[-1].size * size, source, target)
        else:
            axes.append(_Axis(size, source, target))
    return axes
