"""Points at which the sizes of a program's values are checked. A point has a number for each symbol of the program."""

from __future__ import annotations

from collections.abc import Sequence

#: For a symbol without a max, `sample_points` uses the symbol's min plus this number as the max.
_UNBOUNDED_SPAN = 64


def sample_points(ranges: Sequence[tuple[int, int | None]]) -> list[tuple[int, ...]]:
    """Return points within the ranges of the symbols. A max of None means that there is no upper limit.

    1. At the first point, all symbols are at their min. At the second point, all symbols are at their max.
    2. Two points are between these. At each of them, all symbols have different numbers other than 0 and 1, if possible.
    3. A symbol whose range has exactly two numbers gets two more points: one with this symbol at its min and all others at
       their max, and the reverse. They are needed because PyTorch removes size 1 from ranges (torch 2.13). So it treats the
       range 1..2 as the number 2, and does not report that two axes with this range must be equal.
    """
    ends = [(low, low + _UNBOUNDED_SPAN if high is None else high) for low, high in ranges]
    points = [tuple(low for low, _ in ends), tuple(high for _, high in ends)]
    for shift in (0, 1):
        numbers: list[int] = []
        for position, (low, high) in enumerate(ends):
            middle = low + (high - low) * (position + 1 + shift) // (len(ends) + 2)
            unused_numbers = (
                number
                for number in (*range(middle, high + 1), *range(low, middle))
                if number not in numbers and number not in (0, 1)
            )
            numbers.append(next(unused_numbers, middle))
        points.append(tuple(numbers))
    lowest, highest = points[:2]
    for position, (low, high) in enumerate(ends):
        if high - low == 1:
            points.append((*highest[:position], low, *highest[position + 1 :]))
            points.append((*lowest[:position], high, *lowest[position + 1 :]))
    return list(dict.fromkeys(points))
