"""Readable forms of durations, sizes and counts, and rows with aligned columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def duration(seconds: float) -> str:
    """A duration as text: ``0.3 s``, ``42.0 s``, ``2 min 05 s``, ``1 h 02 min``."""
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    whole_seconds = round(seconds)
    if whole_seconds < 3600:
        return f"{whole_seconds // 60} min {whole_seconds % 60:02} s"
    return f"{whole_seconds // 3600} h {whole_seconds % 3600 // 60:02} min"


def size(size_bytes: float) -> str:
    """A size as text: ``512 B``, ``34.1 KiB``, ``1.2 GiB``."""
    for unit in _UNITS:
        if size_bytes < 1000 or unit == _UNITS[-1]:
            break
        size_bytes /= 1024
    return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:,.1f} {unit}"


def count(number: int, word: str) -> str:
    """A number with its noun: ``1 step``, ``3 steps``, ``2 entries``. The plural of a noun in ``-ry`` ends in ``-ries``."""
    if number == 1:
        return f"{number:,} {word}"
    return f"{number:,} {word[:-1]}ies" if word.endswith("ry") else f"{number:,} {word}s"


def first_names(names: Sequence[str], most: int = 3) -> str:
    """The first names of a list, and the number of the others: ``a, b, c and 9 more``."""
    if len(names) <= most + 1:  # "and 1 more" would replace only one name
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most:,} more"


def align_rows(rows: Iterable[Sequence[str]], right: Sequence[int] = (), gap: str = "  ") -> list[str]:
    """A line for each row, with aligned columns. `right` has the numbers of the columns that are aligned to the right."""
    cells = [list(row) for row in rows]
    widths: dict[int, int] = {}  # without the codes of colours
    for row in cells:
        for column, cell in enumerate(row):
            widths[column] = max(widths.get(column, 0), len(click.unstyle(cell)))

    def padded(column: int, cell: str) -> str:
        padding = " " * (widths[column] - len(click.unstyle(cell)))
        return padding + cell if column in right else cell + padding

    return [gap.join(padded(column, cell) for column, cell in enumerate(row)).rstrip() for row in cells]
