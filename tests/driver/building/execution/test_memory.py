"""A step starts beside running steps only if enough memory is free. If no step runs, any step may start."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtbuild.core.planning.graph import Reason, Step
from trtbuild.driver.building.execution import memory
from trtbuild.driver.building.execution.memory import (
    BASE_BYTES,
    BYTES_PER_WEIGHT_BYTE,
    MemoryLimit,
    estimate_bytes,
    free_bytes,
    may_start,
)

GIB = 1 << 30


@pytest.mark.parametrize(
    ("estimate", "running", "free_at_rest", "free_now", "allowed"),
    [
        (9 * GIB, [], 1 * GIB, 1 * GIB, True),  # no other step runs
        (2 * GIB, [2 * GIB], 8 * GIB, 6 * GIB, True),
        (2 * GIB, [2 * GIB], 8 * GIB, 1 * GIB, False),  # another program uses the memory
        (2 * GIB, [3 * GIB, 4 * GIB], 8 * GIB, 7 * GIB, False),  # the running steps do not use all their memory yet
        (1 * GIB, [3 * GIB, 4 * GIB], 8 * GIB, 7 * GIB, True),  # the step fits exactly
        (2 * GIB, [2 * GIB], None, None, True),  # the free memory is unknown
        (2 * GIB, [2 * GIB], None, 1 * GIB, False),
        (0, [9 * GIB], 1 * GIB, 1 * GIB, True),  # a package step needs no memory
    ],
)
def test_may_start(
    estimate: int, running: list[int], free_at_rest: int | None, free_now: int | None, allowed: bool
) -> None:
    assert may_start(estimate, running, free_at_rest, free_now) is allowed


def test_an_estimate_follows_from_the_last_peak_or_from_the_weights() -> None:
    assert estimate_bytes("engine", GIB, 10 * GIB) == 11 * GIB
    assert estimate_bytes("engine", GIB, None) == BASE_BYTES["engine"] + int(BYTES_PER_WEIGHT_BYTE["engine"] * GIB)
    assert estimate_bytes("convert", GIB, None) == BASE_BYTES["convert"]
    assert estimate_bytes("package", GIB, None) == 0


def free_bytes_with(tmp_path: Path, groups: str, files: dict[str, str]) -> int | None:
    """The free memory of a process if ``/proc/meminfo`` reports 8 GiB of available memory.

    `groups` is the text of ``/proc/self/cgroup``. `files` are the texts of files below ``/sys/fs/cgroup``, by path.
    """
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 16000000 kB\nMemAvailable:   {8 << 20} kB\n")
    (proc / "self" / "cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return free_bytes(proc, tmp_path / "groups")


def test_without_a_limit_the_available_memory_of_linux_is_free(tmp_path: Path) -> None:
    files = {"job/memory.max": "max\n", "job/memory.current": "1\n"}
    assert free_bytes_with(tmp_path, "0::/job\n", files) == 8 * GIB


def test_a_version_2_cgroup_limits_free_memory_and_page_cache_counts_as_free(tmp_path: Path) -> None:
    files = {
        "job/memory.max": f"{4 * GIB}\n",
        "job/memory.current": f"{3 * GIB}\n",
        "job/memory.stat": f"anon 5\ninactive_file {1 * GIB}\n",
    }
    assert free_bytes_with(tmp_path, "0::/job\n", files) == 2 * GIB


def test_a_parent_cgroup_limits_free_memory(tmp_path: Path) -> None:
    files = {
        "a/memory.max": f"{2 * GIB}\n",
        "a/memory.current": f"{1 * GIB}\n",
        "a/b/memory.max": "max\n",
        "a/b/memory.current": "0\n",
    }
    assert free_bytes_with(tmp_path, "0::/a/b\n", files) == 1 * GIB


def test_a_version_1_cgroup_limits_free_memory(tmp_path: Path) -> None:
    files = {
        "memory/job/memory.limit_in_bytes": f"{4 * GIB}\n",
        "memory/job/memory.usage_in_bytes": f"{3 * GIB}\n",
        "memory/job/memory.stat": f"cache 1\ntotal_inactive_file {GIB // 2}\n",
        "memory/memory.limit_in_bytes": f"{2**63 - 4096}\n",
        "memory/memory.usage_in_bytes": f"{3 * GIB}\n",
    }
    assert free_bytes_with(tmp_path, "5:cpu:/job\n4:memory:/job\n0::/\n", files) == GIB + GIB // 2


def test_in_a_container_the_limit_of_the_visible_cgroup_is_read(tmp_path: Path) -> None:
    files = {"memory.max": f"{2 * GIB}\n", "memory.current": f"{1 * GIB}\n"}
    assert free_bytes_with(tmp_path, "0::/system.slice/docker-4711.scope\n", files) == 1 * GIB


def test_a_cgroup_above_its_limit_has_no_free_memory(tmp_path: Path) -> None:
    files = {"job/memory.max": f"{2 * GIB}\n", "job/memory.current": f"{3 * GIB}\n"}
    assert free_bytes_with(tmp_path, "0::/job\n", files) == 0


def test_free_memory_is_unknown_if_no_file_can_be_read(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "no proc", tmp_path / "no groups") is None


def test_the_free_memory_of_this_machine_is_positive_or_unknown() -> None:
    free = free_bytes()
    assert free is None or free > 0


def test_the_limit_counts_the_memory_of_running_steps() -> None:
    sizes = {"first": 4 * GIB, "second": 4 * GIB, "small": 1 * GIB}
    first, second, small = (Step(name, "m", "engine", "run", Reason("new", "")) for name in sizes)
    limit = MemoryLimit(lambda step: sizes[step.id], lambda: 6 * GIB)
    assert limit.allows(first)
    limit.acquire(first)
    assert not limit.allows(second)
    assert limit.allows(small)
    limit.acquire(small)
    limit.release(first)
    assert limit.allows(second)


def test_an_engine_step_has_a_least_memory_and_a_trace_step_has_none() -> None:
    assert memory.least_bytes("engine", 1000) == 1500
    assert memory.least_bytes("trace", 1000) == 0


def test_free_swap_is_added_to_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 5 * GIB)
    monkeypatch.setattr(memory, "_read_lines", lambda path: ["MemFree: 1 kB", f"SwapFree:   {2 << 20} kB"])
    assert memory.free_with_swap_bytes() == 7 * GIB
    monkeypatch.setattr(memory, "free_bytes", lambda: None)
    assert memory.free_with_swap_bytes() is None
