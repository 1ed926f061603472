"""Copies of strided arrays, tested with numpy: the same elements, in few copies."""

from __future__ import annotations

import random

import numpy as np
import pytest

from trtbuild.runtime.memory.strides import Rows, rows_of

BLOCK = np.arange(2 * 3 * 4 * 5, dtype=np.int32)
IMAGES = BLOCK.reshape(2, 3, 4, 5)


def copied(array: np.ndarray) -> tuple[np.ndarray, list[Rows]]:
    """A contiguous copy of a view of BLOCK, made as `rows_of` says, and its copies."""
    strides = [step // array.itemsize for step in array.strides]
    first = (array.__array_interface__["data"][0] - BLOCK.ctypes.data) // array.itemsize
    rows, result = list(rows_of(array.shape, strides)), np.full(array.size, -1, np.int32)
    for entry in rows:
        assert entry.count == 1 or min(entry.source_pitch, entry.target_pitch) >= entry.length
        for row in range(entry.count):
            at, source = entry.target + row * entry.target_pitch, first + entry.source + row * entry.source_pitch
            assert source >= 0 and source + entry.length <= len(BLOCK)
            result[at : at + entry.length] = BLOCK[source : source + entry.length]
    return result.reshape(array.shape), rows


@pytest.mark.parametrize(
    ("array", "copies"),
    [
        (IMAGES, 1),
        (IMAGES[:, :, :, :0], 0),
        (IMAGES[0, 0, 0, :1].reshape(()), 1),
        (IMAGES[1:, 1:], 1),
        (IMAGES[..., 1:3], 1),
        (IMAGES[:, 1:], 1),
        (BLOCK.reshape(2, 4, 5, 3).transpose(0, 3, 1, 2), 6),  # images whose channels come last
        (BLOCK.reshape(1, 8, 5, 3).transpose(0, 3, 1, 2), 3),
        (BLOCK.reshape(10, 12).T, 10),
        (BLOCK.reshape(3, 40).T, 3),
        (np.broadcast_to(BLOCK[:5], (7, 5)), 7),
        (np.broadcast_to(BLOCK[:5, None], (5, 7)), 7),
        (BLOCK[::-1], 120),
        (IMAGES[:, ::-1], 3),
    ],
)
def test_a_view_is_copied_in_few_copies(array: np.ndarray, copies: int) -> None:
    found, rows = copied(array)
    np.testing.assert_array_equal(found, array)
    assert len(rows) == copies


def test_rows_that_lie_further_apart_than_a_copy_takes_are_a_copy_each() -> None:
    """The first columns of a matrix of int64 with rows of 2 GiB; cuMemcpy2D takes pitches below that."""
    far, near = 2**28, 2**28 - 1
    assert list(rows_of((3, 5), (far, 1))) == [Rows(5 * row, far * row, 5) for row in range(3)]
    assert list(rows_of((3, 5), (near, 1))) == [Rows(0, 0, 5, 3, 5, near)]
    assert [entry.count for entry in rows_of((9, 4, 5), (far, 10, 1))] == [4] * 9


def test_any_view_is_copied_right() -> None:
    chance = random.Random(0)
    for _ in range(500):
        array = IMAGES
        for _ in range(chance.randrange(4)):
            axis = chance.randrange(4)
            step = chance.choice([1, 1, 2, 3, -1, -2])
            array = array[(slice(None),) * axis + (slice(None, None, step),)]
            array = array.transpose(chance.sample(range(4), 4))
        np.testing.assert_array_equal(copied(array)[0], array)
