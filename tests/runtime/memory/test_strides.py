"""The copies that make a strided array contiguous: they are few, and the result is the same as in NumPy."""

from __future__ import annotations

import random

import numpy as np
import pytest

from trtbuild.runtime.memory.strides import Rows, rows_of

BLOCK = np.arange(2 * 3 * 4 * 5, dtype=np.int32)
IMAGES = BLOCK.reshape(2, 3, 4, 5)


def copied(array: np.ndarray) -> tuple[np.ndarray, list[Rows]]:
    """Execute the copies of `rows_of` for a view of BLOCK. Return the contiguous array and the list of copies."""
    strides = [step // array.itemsize for step in array.strides]
    first = (array.__array_interface__["data"][0] - BLOCK.ctypes.data) // array.itemsize
    rows, result = list(rows_of(array.shape, strides)), np.full(array.size, -1, np.int32)
    for entry in rows:
        assert entry.count == 1 or min(entry.source_pitch, entry.target_pitch) >= entry.length
        for row in range(entry.count):
            target, source = entry.target + row * entry.target_pitch, first + entry.source + row * entry.source_pitch
            assert source >= 0 and source + entry.length <= len(BLOCK)
            result[target : target + entry.length] = BLOCK[source : source + entry.length]
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
        (BLOCK.reshape(2, 4, 5, 3).transpose(0, 3, 1, 2), 6),  # images with the channels last
        (BLOCK.reshape(1, 8, 5, 3).transpose(0, 3, 1, 2), 3),
        (BLOCK.reshape(10, 12).T, 10),
        (BLOCK.reshape(3, 40).T, 3),
        (np.broadcast_to(BLOCK[:5], (7, 5)), 7),
        (np.broadcast_to(BLOCK[:5, None], (5, 7)), 7),
        (BLOCK[::-1], 120),
        (IMAGES[:, ::-1], 3),
    ],
)
def test_copies_a_view_with_few_copies(array: np.ndarray, copies: int) -> None:
    result, rows = copied(array)
    np.testing.assert_array_equal(result, array)
    assert len(rows) == copies


def test_copies_each_row_separately_if_the_pitch_is_too_large() -> None:
    """The array is the first 5 columns of an int64 matrix with rows of 2 GiB, which are too long for cuMemcpy2D."""
    too_large, allowed = 2**28, 2**28 - 1
    assert list(rows_of((3, 5), (too_large, 1))) == [
        Rows(target=5 * row, source=too_large * row, length=5) for row in range(3)
    ]
    assert list(rows_of((3, 5), (allowed, 1))) == [
        Rows(target=0, source=0, length=5, count=3, target_pitch=5, source_pitch=allowed)
    ]
    assert [entry.count for entry in rows_of((9, 4, 5), (too_large, 10, 1))] == [4] * 9


def test_copies_random_views_correctly() -> None:
    generator = random.Random(0)
    for _ in range(500):
        array = IMAGES
        for _ in range(generator.randrange(4)):
            axis = generator.randrange(4)
            step = generator.choice([1, 1, 2, 3, -1, -2])
            array = array[(slice(None),) * axis + (slice(None, None, step),)]
            array = array.transpose(generator.sample(range(4), 4))
        np.testing.assert_array_equal(copied(array)[0], array)
