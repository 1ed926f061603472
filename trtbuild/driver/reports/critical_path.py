"""The critical path of a build: the steps that decided how long it took.

Rules
1. The path is found from its end, the step that ended last. The step before a step S is usually the producer of S that
   ended last. But if S then waited for a free worker, it is the last step that ended on the worker of S before S started.
2. A step that did not start is not on the path. A running step ends at the last event.
3. A step may start before its producer has ended, if the producer still checks its results. Then the time of the producer
   counts up to this start.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trtbuild.driver.reports.documents import StepRow

#: A step that started this many seconds after its last producer ended has waited for a free worker or for memory.
_NOTICEABLE_S = 0.05


def with_waits(
    steps: Mapping[str, StepRow], producers: Mapping[str, Sequence[str]], last_s: float
) -> tuple[dict[str, StepRow], float]:
    """`steps` with `waited_for`, `waited_s` and `critical`, and the total seconds of the steps on the critical path.

    `producers` maps the id of a step to the ids of its producers. `last_s` is the time of the last event.
    """
    started = {id: row for id, row in steps.items() if row.start_s is not None}
    ends = {id: last_s if row.end_s is None else row.end_s for id, row in started.items()}
    first_s = min((row.start_s for row in started.values() if row.start_s is not None), default=0.0)
    by_worker: dict[str, list[tuple[float, str]]] = {}
    for id, row in started.items():
        by_worker.setdefault(row.worker or "", []).append((ends[id], id))
    for entries in by_worker.values():
        entries.sort()
    result = dict(steps)
    for id, row in started.items():
        start_s = row.start_s or 0.0
        ready_s, waited_for = max(
            ((ends[name], name) for name in producers.get(id, ()) if name in ends), default=(first_s, None)
        )
        waited_s = max(0.0, start_s - ready_s)
        if waited_s > _NOTICEABLE_S:
            entries = by_worker[row.worker or ""]
            position = bisect_right(entries, (start_s, "\U0010ffff"))  # after every step that ended at `start_s`
            if position and entries[position - 1][1] != id:
                waited_for = entries[position - 1][1]
        result[id] = replace(row, waited_for=waited_for, waited_s=round(waited_s, 3))
    path_s, next_start_s = 0.0, last_s
    current = max(ends, key=lambda id: (ends[id], id), default=None)
    seen: set[str] = set()
    while current is not None and current not in seen:
        seen.add(current)
        row = result[current] = replace(result[current], critical=True)
        start_s = row.start_s or 0.0
        path_s += max(0.0, min(ends[current], next_start_s) - start_s)
        next_start_s = start_s
        current = row.waited_for
    return result, round(path_s, 3)
