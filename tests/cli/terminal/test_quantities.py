"""Durations, sizes and counts as text, and aligned columns."""

from __future__ import annotations

import pytest

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import align_rows, count, duration, first_names, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (4.24, "4.2 s"),
        (99.94, "99.9 s"),
        (99.96, "1 min 40 s"),
        (125, "2 min 05 s"),
        (3599.6, "1 h 00 min"),
        (3720, "1 h 02 min"),
    ],
)
def test_durations_have_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KiB"),
        (34_918, "34.1 KiB"),
        (834 * 2**20, "834.0 MiB"),
        (1023 * 2**20, "1.0 GiB"),
        (5 * 2**50, "5,120.0 TiB"),
    ],
)
def test_sizes_have_units(size_bytes: int, text: str) -> None:
    assert size(size_bytes) == text


def test_a_count_has_a_noun_and_a_list_of_names_is_shortened() -> None:
    assert [count(n, "step") for n in (0, 1, 1200)] == ["0 steps", "1 step", "1,200 steps"]
    assert count(2, "entry") == "2 entries"
    assert first_names(["a"]) == "a"
    assert first_names(["a", "b", "c", "d"]) == "a, b, c, d"
    assert first_names(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


def test_coloured_columns_are_aligned() -> None:
    assert align_rows([("a", terminal.red("bb"), "1"), ("aaa", "b", "22")], right=(2,)) == [
        f"a    {terminal.red('bb')}   1",
        "aaa  b   22",
    ]
    assert align_rows([]) == []
