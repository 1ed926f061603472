"""The history of builds that ``cache stats`` shows: hits, misses and saved time of the last builds of a project.

The file ``.trtbuild/build_history.jsonl`` has one line for each build. Only ``cache stats`` reads it.

Rules
1. A line is appended under a lock, so simultaneous builds do not mix their lines.
2. If the file has more than `MOST_BUILDS` + `SLACK` lines, the oldest lines are removed under the same lock.
3. A null build (a build that finds nothing to do) has no line, because it looks up no step.
4. An error of the disk is ignored, because a history that cannot be written must not make a build fail.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtbuild.atomic import lock_beside, replace_file, write_all
from trtbuild.core.values.codec import decode, encode
from trtbuild.driver.answers.documents import Build
from trtbuild.driver.cache.documents import CacheHistory, CachePeriod
from trtbuild.driver.project.folders import STATE_FOLDER
from trtbuild.regular import read_regular

FILE = "build_history.jsonl"
#: Rule 2. Because of the slack, the file is not written again for each build.
MOST_BUILDS = 2000
SLACK = 200
#: The largest number of days that `summarize` lists.
MOST_DAYS = 14
#: The Unix time of the year 10000. Later times are invalid, because `time.gmtime` cannot convert all of them.
_MAX_FINISHED_S = 253402300800.0


@dataclass(frozen=True, kw_only=True)
class NotedBuild:
    """One build. A miss is a step that ran or failed. `finished_s`: the end of the build in Unix time.

    `CachePeriod` explains the other numbers.
    """

    finished_s: float
    ok: bool
    hits: int
    misses: int
    saved_s: float
    built_s: float
    reasons: Mapping[str, int]


def note_build(project: Path, document: Build) -> None:
    """Append a line for the build that `document` describes (rules 1, 2 and 4)."""
    missed = [step for step in document.steps if step.verdict in ("run", "failed")]
    build = NotedBuild(
        finished_s=round(time.time(), 1),
        ok=document.ok,
        hits=sum(step.verdict == "hit" for step in document.steps),
        misses=len(missed),
        saved_s=round(sum(step.saved_s for step in document.steps), 1),
        built_s=round(sum(step.duration_s for step in missed), 1),
        reasons=dict(Counter(step.reason.code for step in missed)),
    )
    path = project / STATE_FOLDER / FILE
    line = json.dumps(encode(build), separators=(",", ":")).encode() + b"\n"
    with contextlib.suppress(OSError), lock_beside(path):
        _append(path, line)


def read_builds(project: Path) -> list[NotedBuild]:
    """The noted builds of a project, the oldest first. Invalid lines are left out."""
    builds = []
    try:
        data = read_regular(project / STATE_FOLDER / FILE)
    except OSError:
        return []
    for line in data.split(b"\n"):
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            build = decode(NotedBuild, json.loads(line))
            if 0 <= build.finished_s < _MAX_FINISHED_S:
                builds.append(build)
    return builds


def summarize(builds: Sequence[NotedBuild]) -> CacheHistory | None:
    """The numbers of `builds` in total and by day (UTC). None if there is no build."""
    if not builds:
        return None
    days: dict[str, list[NotedBuild]] = {}
    for build in builds:
        days.setdefault(time.strftime("%Y-%m-%d", time.gmtime(build.finished_s)), []).append(build)
    newest = sorted(days)[-MOST_DAYS:]
    total = _period("", builds)
    return CacheHistory(
        since=min(days),
        builds=total.builds,
        hits=total.hits,
        misses=total.misses,
        hit_rate=total.hit_rate,
        saved_s=total.saved_s,
        built_s=total.built_s,
        reasons=total.reasons,
        days=[_period(day, days[day]) for day in newest],
    )


def _period(day: str, builds: Iterable[NotedBuild]) -> CachePeriod:
    chosen = list(builds)
    hits, misses = sum(build.hits for build in chosen), sum(build.misses for build in chosen)
    reasons: Counter[str] = Counter()
    for build in chosen:
        reasons.update(build.reasons)
    return CachePeriod(
        day=day,
        builds=len(chosen),
        hits=hits,
        misses=misses,
        hit_rate=round(hits / (hits + misses), 4) if hits + misses else None,
        saved_s=round(sum(build.saved_s for build in chosen), 1),
        built_s=round(sum(build.built_s for build in chosen), 1),
        reasons=dict(reasons.most_common()),
    )


def _append(path: Path, line: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        # A full disk may have left the last line incomplete. The new line must not continue it.
        last_is_whole = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
        write_all(descriptor, line if last_is_whole else b"\n" + line)
    finally:
        os.close(descriptor)
    lines = read_regular(path).splitlines(keepends=True)
    if len(lines) > MOST_BUILDS + SLACK:
        replace_file(path, b"".join(lines[-MOST_BUILDS:]), mode=0o600)
