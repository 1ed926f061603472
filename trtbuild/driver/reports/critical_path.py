"""The critical path of a build: the steps that decided how long it took.

Rules
1. The path is found backwards, from the step that ended last. The producers of a step S are the steps whose outputs S
   reads. Usually the step before S is the producer of S that ended last. But if S then waited for a free worker, the step
   before S is the last step that ended on this worker before S started. (A worker is a lane of the build. A lane runs
   one step at a time.)
2. A step that did not start is not on the path. A step that is still running counts as ended at the last event.
3. A step may start while its producer still checks the results. Then the time of the producer counts up to this start.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trtbuild.driver.reports.documents import StepRow

#: A step that started more than this many seconds after its last producer ended has waited for a free worker or memory.
_NOTICEABLE_S = 0.05


def with_waits(
    steps: Mapping[str, StepRow], producers: Mapping[str, Sequence[str]], last_s: float
) -> tuple[dict[str, StepRow], float]:
    """`steps` with `waited_for`, `waited_s` and `critical`, and the total seconds of the steps on the critical path.

    `producers` maps step ids to the ids of the step's producers. `last_s` is the time of the last event.
    """
    ends = {id: last_s if row.end_s is None else row.end_s for id, row in steps.items() if row.start_s is not None}
    result = _with_waited_for(steps, producers, ends)
    path_s, next_start_s = 0.0, last_s
    current = max(ends, key=lambda id: (ends[id], id), default=None)
    seen: set[str] = set()
    while current is not None and current not in seen:
        seen.add(current)
        row = result[current] = replace(result[current], critical=True)
        start_s = row.start_s or 0.0
        path_s += max(0.0, min(ends[current], next_start_s) - start_s)  # rule 3
        next_start_s = start_s
        current = row.waited_for
    return result, round(path_s, 3)


def _with_waited_for(
    steps: Mapping[str, StepRow], producers: Mapping[str, Sequence[str]], ends: Mapping[str, float]
) -> dict[str, StepRow]:
    """`steps` with `waited_for` and `waited_s` (rule 1). `ends` maps the ids of started steps to their ends in seconds."""
    started = {id: steps[id] for id in ends}
    first_s = min((row.start_s for row in started.values() if row.start_s is not None), default=0.0)
    ends_by_worker: dict[str, list[tuple[float, str]]] = {}
    for id, row in started.items():
        ends_by_worker.setdefault(row.worker or "", []).append((ends[id], id))
    for worker_ends in ends_by_worker.values():
        worker_ends.sort()
    result = dict(steps)
    for id, row in started.items():
        start_s = row.start_s or 0.0
        ready_s, waited_for = max(
            ((ends[name], name) for name in producers.get(id, ()) if name in ends), default=(first_s, None)
        )
        waited_s = max(0.0, start_s - ready_s)
        if waited_s > _NOTICEABLE_S:
            worker_ends = ends_by_worker[row.worker or ""]
            position = bisect_right(worker_ends, (start_s, "\U0010ffff"))  # after every step that ended at `start_s`
            last_end_s, last_id = worker_ends[position - 1] if position else (0.0, id)
            if last_id != id and last_end_s > ready_s:  # otherwise the worker was free, and the step waited for memory
                waited_for = last_id
        result[id] = replace(row, waited_for=waited_for, waited_s=round(waited_s, 3))
    return result
