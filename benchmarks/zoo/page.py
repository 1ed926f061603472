"""Update the tables of docs/zoo.md.

Each size of the models (published or small) has a table, between two comments. A run of `benchmarks.zoo` replaces the rows
of the models that it builds, and removes the rows of models that the manifest no longer has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from benchmarks.zoo.measuring import Row, Size

_HEADER = (
    "| model | precision | engines | partitions in PyTorch | result | worst error | build, seconds |",
    "|---|---|---|---|---|---|---|",
)
#: The longest text of a problem in a row, in characters.
_LONGEST = 160


def line(row: Row) -> str:
    error = "" if row.error is None else f"{row.error:.1e}"
    seconds = "" if row.seconds is None else f"{row.seconds:.0f}"
    counts = ("" if count is None else str(count) for count in (row.engines, row.torch_partitions))
    return f"| {' | '.join([f'`{row.model}`', row.precision, *counts, _result(row), error, seconds])} |"


def replace(page: str, size: Size, rows: Iterable[Row], order: Sequence[str]) -> str:
    """Return `page` with `rows` in the table of `size`, in the order of the names in `order`.

    Rows of models that are not in `order` are removed. Raises ValueError if the page has no place for the table.
    """
    start, end = f"<!-- zoo: {size} -->\n", f"<!-- zoo: end of {size} -->\n"
    before, found_start, rest = page.partition(start)
    table, found_end, after = rest.partition(end)
    if not found_start or not found_end:
        raise ValueError(f"the page has no comments {start.strip()} and {end.strip()}")
    lines = {match[1]: text for text in table.splitlines() if (match := re.match(r"\| `(\w+)` \|", text))}
    lines.update({row.model: line(row) for row in rows})
    in_order = [lines[name] for name in order if name in lines]
    # Markdown needs empty lines around a table.
    return before + start + "\n" + "\n".join([*_HEADER, *in_order]) + "\n\n" + end + after


def _result(row: Row) -> str:
    """Return the result, such as "right", and the problem if there is one."""
    reason = row.problem.replace("|", "\\|").replace("<", "&lt;")
    if len(reason) > _LONGEST:
        reason = reason[: _LONGEST - 1].rstrip() + "…"
    if row.engines is None:
        return f"not built: {reason}"
    return f"{row.status or 'not verified'}{': ' if reason else ''}{reason}"
