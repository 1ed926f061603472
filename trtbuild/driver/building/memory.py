"""How much memory there is, what a step will take of it, and whether it may start beside the others.

Rules
1. One step always runs, whatever it takes: a build on a small machine is slow, not stuck.
2. Another one starts only if its estimate is free now, and if the estimates of all that run fit into what was free when
   nothing ran. The first looks at what the machine does besides; the second counts what steps have not taken yet.
3. An estimate is the peak that the step had last time, plus a tenth. Else it is made from bytes that are known: of an
   engine's weights, or of a model's weights file, times `PER_BYTE`, on top of `BASE`. Both are larger than what was
   measured, for a build that waits costs less than one that is ended by the kernel.
4. Free is what Linux calls available, or what the control groups of this process have left, if that is less. Page cache
   counts as free in both. Where nothing of that can be read, there is no limit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from trtbuild.core.planning.graph import Stage, Step

MIB = 1 << 20

#: Bytes that a worker takes with no weights at all: the interpreter and its libraries. By stage. Measured with torch 2.13
#: and TensorRT-RTX 1.7.1 on a model of two layers: 345, 380, 495, 495 and 216 MiB.
BASE: dict[Stage, int] = {
    "trace": 450 * MIB,
    "lower": 450 * MIB,
    "partition": 600 * MIB,
    "convert": 600 * MIB,
    "engine": 300 * MIB,
    "package": 0,
}
#: Bytes for each byte of weights. Measured on ViTs of 120 and 343 MB: a trace 1.3, an engine 3.4.
PER_BYTE: dict[Stage, float] = {
    "trace": 3.0,
    "lower": 2.0,
    "partition": 1.0,
    "convert": 0.0,
    "engine": 4.0,
    "package": 0.0,
}

#: Larger numbers mean "no limit" in a control group (version 1 writes 2^63 less a page).
_UNLIMITED = 1 << 60


def estimate_bytes(stage: Stage, weights_bytes: int, last_peak_bytes: int | None) -> int:
    """What a step will take at its peak (rule 3)."""
    if last_peak_bytes:
        return last_peak_bytes + last_peak_bytes // 10
    return BASE[stage] + int(PER_BYTE[stage] * weights_bytes)


def may_start(
    estimate_bytes: int, running: Collection[int], free_at_rest_bytes: int | None, free_now_bytes: int | None
) -> bool:
    """Whether a step may start beside others, whose estimates are `running`. None is no limit."""
    if not running or estimate_bytes == 0:
        return True
    if free_now_bytes is not None and estimate_bytes > free_now_bytes:
        return False
    return free_at_rest_bytes is None or sum(running) + estimate_bytes <= free_at_rest_bytes


def free_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Memory that this process and its children can still take (rule 4); None where that cannot be found out."""
    found = [_available(proc / "meminfo"), *_left_in_groups(proc / "self" / "cgroup", groups)]
    return min((size for size in found if size is not None), default=None)


def _available(meminfo: Path) -> int | None:
    for line in _lines(meminfo):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _left_in_groups(own: Path, groups: Path) -> list[int | None]:
    """What is left in each memory group that this process is in, and in those above it (cgroups(7))."""
    left: list[int | None] = []
    for line in _lines(own):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":  # version 2; where both are in use it is mounted beside the other
            roots, names = [groups, groups / "unified"], ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            roots = [groups / "memory"]
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for root in roots:
            for length in range(
                len(parts) + 1
            ):  # in a container the path may be the host's: what is not there is no limit
                left.append(_left(root.joinpath(*parts[:length]), *names))
    return left


def _left(group: Path, limit: str, used: str, cached: str) -> int | None:
    most, now = _number(group / limit), _number(group / used)
    if most is None or now is None or most >= _UNLIMITED:
        return None
    reclaimable = 0
    for line in _lines(group / "memory.stat"):
        name, _, value = line.partition(" ")
        if name == cached and value.isdigit():
            reclaimable = int(value)
    return max(0, most - now + min(reclaimable, now))


def _number(path: Path) -> int | None:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("ascii", errors="replace").splitlines()
    except OSError:
        return []


class MemoryRoom:
    """Which of the steps fit beside those that run. For one thread. `free` is asked before each start."""

    def __init__(self, estimate: Callable[[Step], int], free: Callable[[], int | None] = free_bytes) -> None:
        self._estimate = estimate
        self._free = free
        self._at_rest: int | None = None
        self._running: dict[str, int] = {}

    def has(self, step: Step) -> bool:
        """Whether the step may start now."""
        if not self._running:
            return True
        return may_start(self._estimate(step), self._running.values(), self._at_rest, self._free())

    def enter(self, step: Step) -> None:
        """The step starts."""
        if not self._running:
            self._at_rest = self._free()
        self._running[step.id] = self._estimate(step)

    def leave(self, step: Step) -> None:
        """The step has ended."""
        del self._running[step.id]
