"""The memory limit: whether enough memory is free to start a step beside the running steps.

Rules
1. A step may always start if no other step runs. So a build on a small machine makes progress with one step at a time.
2. A step starts beside others only if its estimate is at most the memory that is free now. This condition respects other
   programs. In addition, its estimate and those of all running steps must together be at most the memory that was free
   when no step ran. This condition respects memory that running steps have not allocated yet. A step whose estimate is
   0 bytes may always start.
3. The estimate for a step is the memory peak of its last run, plus a tenth. Without a last run, it is `BASE_BYTES` plus
   `BYTES_PER_WEIGHT_BYTE` times the size of the weights: the engine's weights, or the model's weights file. Both tables
   have larger numbers than measured, because a step that waits costs less than a step that the kernel kills.
4. Free memory is the smaller of two values: Linux's MemAvailable, and the bytes that the control groups (cgroups) of this
   process still allow. The inactive pages of a control group's page cache count as free, and its other pages as used. If
   neither value can be read, no step waits for memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from trtbuild.core.planning.graph import Stage, Step

MIB = 1 << 20

#: Stage → bytes that a worker needs without weights (the interpreter and its libraries). Measured from trace to engine:
#: 345, 380, 495, 495 and 216 MiB, with torch 2.13 and TensorRT-RTX 1.7.1, on a model of two layers.
BASE_BYTES: dict[Stage, int] = {
    "calibrate": 900 * MIB,
    "trace": 450 * MIB,
    "lower": 450 * MIB,
    "partition": 600 * MIB,
    "convert": 600 * MIB,
    "engine": 300 * MIB,
    "package": 0,
}
#: Stage → bytes for each byte of weights. Measured on ViTs of 120 and 343 MB: a trace 1.3, an engine 3.4.
BYTES_PER_WEIGHT_BYTE: dict[Stage, float] = {
    "calibrate": 3.0,
    "trace": 3.0,
    "lower": 2.0,
    "partition": 1.0,
    "convert": 0.0,
    "engine": 4.0,
    "package": 0.0,
}

#: From this number on, the limit of a control group means "no limit" (version 1 writes 2^63 minus a page).
_UNLIMITED_BYTES = 1 << 60


def estimate_bytes(stage: Stage, weights_bytes: int, last_peak_bytes: int | None) -> int:
    """The expected memory peak of a step in bytes (rule 3)."""
    if last_peak_bytes:
        return last_peak_bytes + last_peak_bytes // 10
    return BASE_BYTES[stage] + int(BYTES_PER_WEIGHT_BYTE[stage] * weights_bytes)


def least_bytes(stage: Stage, weights_bytes: int) -> int:
    """The bytes of memory without which a step certainly fails; 0 if not known.

    An engine step needs a copy of the weights, and TensorRT's own buffers. For each byte of float32 weights, TensorRT-RTX
    1.7.1 needed 2.1 bytes (3.2 GB of weights), or 2.2 bytes if it computed in float16 (1.1 GB). The result is smaller than
    these measurements, because a step that may succeed must not be refused.
    """
    return int(1.5 * weights_bytes) if stage == "engine" else 0


def may_start(
    estimate_bytes: int, running_estimates: Collection[int], free_at_rest_bytes: int | None, free_now_bytes: int | None
) -> bool:
    """Whether a step may start beside the running steps. `running_estimates` are their estimates in bytes.

    `free_at_rest_bytes` is the memory that was free when no step ran. Unknown free memory (None) sets no limit.
    """
    if not running_estimates or estimate_bytes == 0:
        return True
    if free_now_bytes is not None and estimate_bytes > free_now_bytes:
        return False
    return free_at_rest_bytes is None or sum(running_estimates) + estimate_bytes <= free_at_rest_bytes


def free_with_swap_bytes() -> int | None:
    """The sum of the free memory and the free swap; None if the free memory is unknown.

    A step that needs swap is slow, but it may succeed."""
    free = free_bytes()
    swap = (int(line.split()[1]) * 1024 for line in _read_lines(Path("/proc/meminfo")) if line.startswith("SwapFree:"))
    return None if free is None else free + sum(swap)


def free_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that this process and its children can still allocate (rule 4); None if unknown."""
    sizes = [_available_bytes(proc / "meminfo"), *_remaining_bytes_in_groups(proc / "self" / "cgroup", groups)]
    return min((size for size in sizes if size is not None), default=None)


def _available_bytes(meminfo: Path) -> int | None:
    for line in _read_lines(meminfo):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _remaining_bytes_in_groups(membership: Path, groups: Path) -> list[int | None]:
    """The bytes that remain in each memory control group of this process and in each parent group (cgroups(7))."""
    remaining_bytes: list[int | None] = []
    for line in _read_lines(membership):
        # a line is ``hierarchy:controllers:path``; missing fields become empty
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":  # version 2; if version 1 is in use, too, version 2 is mounted below `unified`
            roots, names = [groups, groups / "unified"], ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            roots = [groups / "memory"]
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for root in roots:
            # in a container, the path may be a path of the host: a directory that does not exist here sets no limit
            remaining_bytes += [
                _remaining_bytes(root.joinpath(*parts[:length]), *names) for length in range(len(parts) + 1)
            ]
    return remaining_bytes


def _remaining_bytes(group: Path, limit_file: str, usage_file: str, cached_field: str) -> int | None:
    limit_bytes, used_bytes = _read_number(group / limit_file), _read_number(group / usage_file)
    if limit_bytes is None or used_bytes is None or limit_bytes >= _UNLIMITED_BYTES:
        return None
    reclaimable_bytes = 0
    for line in _read_lines(group / "memory.stat"):
        name, _, value = line.partition(" ")
        if name == cached_field and value.isdigit():
            reclaimable_bytes = int(value)
    return max(0, limit_bytes - used_bytes + min(reclaimable_bytes, used_bytes))


def _read_number(path: Path) -> int | None:
    lines = _read_lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text("ascii", errors="replace").splitlines()
    except OSError:
        return []


class MemoryLimit:
    """Allows the steps that fit in memory beside the running steps. Not thread-safe.

    `estimate` returns the expected memory peak of a step, and `free` returns the free memory, both in bytes.
    """

    def __init__(self, estimate: Callable[[Step], int], free: Callable[[], int | None] = free_bytes) -> None:
        self._estimate_bytes = estimate
        self._free_bytes = free
        self._free_at_rest_bytes: int | None = None
        self._running_estimates: dict[str, int] = {}

    def allows(self, step: Step) -> bool:
        if not self._running_estimates:
            return True
        return may_start(
            self._estimate_bytes(step), self._running_estimates.values(), self._free_at_rest_bytes, self._free_bytes()
        )

    def acquire(self, step: Step) -> None:
        if not self._running_estimates:
            self._free_at_rest_bytes = self._free_bytes()
        self._running_estimates[step.id] = self._estimate_bytes(step)

    def release(self, step: Step) -> None:
        del self._running_estimates[step.id]
