"""The rows that a benchmark yields. A run prints each row, and ``--json`` writes all rows to a file.

A bound is a limit that the project sets for itself. Rows without a bound help to understand the other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Value:
    """One measured number with its unit, such as s, B, µs or tokens/s. The unit may be empty."""

    name: str
    number: float
    unit: str = "s"

    def __str__(self) -> str:
        return f"{self.name} {_amount(self.number, self.unit)}"


@dataclass(frozen=True)
class Ratio:
    """`numerator` divided by `denominator`. Usually this compares trtbuild with another tool or with the least time.

    `bound` is the largest allowed ratio. With `at_least`, `bound` is the smallest allowed ratio.
    """

    what: str
    numerator: Value
    denominator: Value
    bound: float | None = None
    at_least: bool = False
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.numerator.number / self.denominator.number

    @property
    def met(self) -> bool | None:
        if self.bound is None:
            return None
        return self.ratio >= self.bound if self.at_least else self.ratio <= self.bound

    def cells(self) -> tuple[str, str, str, str]:
        """Return (what, measured, ratio, bound) as text."""
        bound = "" if self.bound is None else f"{'≥' if self.at_least else '≤'} {self.bound:g} ×"
        measured = f"{self.numerator}; {self.denominator}{_note(self.note)}"
        return self.what, measured, f"{_digits(self.ratio)} ×", bound


@dataclass(frozen=True)
class Measurement:
    """One measured number. It must be less than `bound`, if `bound` is not None. Both have the same unit."""

    what: str
    value: Value
    bound: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        return None if self.bound is None else self.value.number < self.bound

    def cells(self) -> tuple[str, str, str, str]:
        bound = "" if self.bound is None else f"< {_amount(self.bound, self.value.unit)}"
        return self.what, f"{self.value}{_note(self.note)}", "", bound


@dataclass(frozen=True)
class Check:
    """The statement `what`, which is true if `met`. `found` is the observation, as text."""

    what: str
    met: bool
    found: str

    def cells(self) -> tuple[str, str, str, str]:
        return self.what, self.found, "", "holds"


Row = Ratio | Measurement | Check


def verdict(row: Row) -> str:
    """Return ``met`` or ``NOT MET``, or an empty string for a row without a bound."""
    return {True: "met", False: "NOT MET", None: ""}[row.met]


def line(row: Row) -> str:
    what, measured, ratio, bound = row.cells()
    ending = "  ".join(part for part in (ratio, bound and f"({bound})", verdict(row)) if part)
    return f"  {what}: {measured}" + (f"  →  {ending}" if ending else "")


def table(rows: Sequence[tuple[str, Row]]) -> str:
    """Return a table of the rows that have a bound. `rows` has pairs of a benchmark's name and a row.

    The columns are the benchmark, what was measured, the ratio or the value, the bound, and the verdict.
    """
    lines = []
    for name, row in rows:
        if row.met is not None:
            what, _, _, bound = row.cells()
            lines.append((name, what, _short(row), bound, verdict(row)))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip() for texts in lines
    )


def _short(row: Row) -> str:
    """Return the ratio or the value of a row as text. For a check, the text is empty."""
    if isinstance(row, Measurement):
        return _amount(row.value.number, row.value.unit)
    return f"{_digits(row.ratio)} ×" if isinstance(row, Ratio) else ""


def to_json(row: Row) -> dict[str, Any]:
    """Return a row as JSON: its fields, its kind, and whether it is met."""
    document = {"kind": type(row).__name__.lower(), **asdict(row), "met": row.met}
    if isinstance(row, Ratio):
        # in the JSON, `ours` is the numerator and `theirs` is the denominator
        document["ours"], document["theirs"] = document.pop("numerator"), document.pop("denominator")
        document["ratio"] = row.ratio
    return document


def _amount(number: float, unit: str) -> str:
    if unit == "s":
        return f"{number * 1000:.0f} ms" if number < 1 else f"{number:.2f} s"
    if unit == "B":
        return f"{number / 1e6:,.1f} MB" if number < 1e9 else f"{number / 1e9:.2f} GB"
    return f"{number:g} {unit}".rstrip()


def _digits(ratio: float) -> str:
    return f"{ratio:.3f}" if ratio < 1 else f"{ratio:.2f}"


def _note(note: str) -> str:
    return f" ({note})" if note else ""
