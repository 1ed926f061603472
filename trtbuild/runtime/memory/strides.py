"""Copy a strided array with few copies: runs of consecutive elements, and rows of such runs.

Rules
1. Axes of size 1 do not count, and axes that together have a constant step are joined to one.
2. One copy handles a run, and its repetitions along one axis: the longest axis on which runs do not overlap
   (``cuMemcpy2D`` needs a pitch of at least a row, and has a largest one). Each position on the other axes needs its
   own copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trtbuild.runtime.memory.dlpack import row_major

#: The largest pitch of a copy in elements, of 8 bytes at most. ``CU_DEVICE_ATTRIBUTE_MAX_PITCH``, in bytes, is an int.
_MOST_PITCH = (2**31 - 1) // 8


@dataclass(frozen=True)
class Rows:
    """`count` runs of `length` elements: from `source` on, every `source_pitch`, to `target` on, every `target_pitch`.
    All in elements."""

    target: int
    source: int
    length: int
    count: int = 1
    target_pitch: int = 0
    source_pitch: int = 0


def rows_of(shape: Sequence[int], strides: Sequence[int]) -> Iterator[Rows]:
    """Yield the copies that make a contiguous array from one with `shape` and `strides` (in elements, of any sign)."""
    if 0 in shape:
        return
    axes = _joined(shape, strides)
    length = 1
    if axes and axes[-1].source == 1:
        length = axes.pop().size
    pitched = (axis for axis in axes if length <= axis.source and max(axis.source, axis.target) <= _MOST_PITCH)
    repeated = max(pitched, key=lambda axis: axis.size, default=None)
    others = [axis for axis in axes if axis is not repeated]
    for index in itertools.product(*(range(axis.size) for axis in others)):
        target = sum(i * axis.target for i, axis in zip(index, others, strict=True))
        source = sum(i * axis.source for i, axis in zip(index, others, strict=True))
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
    """The axes after rule 1."""
    found: list[_Axis] = []
    for size, source, target in zip(shape, strides, row_major(tuple(shape)), strict=True):
        if size == 1:
            continue
        if found and found[-1].source == source * size:
            found[-1] = _Axis(found[-1].size * size, source, target)
        else:
            found.append(_Axis(size, source, target))
    return found
