"""A step starts beside others only if its memory is there; one always runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtbuild.core.planning.graph import Reason, Step
from trtbuild.driver.building.memory import BASE, PER_BYTE, MemoryLimit, estimate_bytes, free_bytes, may_start

GIB = 1 << 30


@pytest.mark.parametrize(
    ("estimate", "running", "at_rest", "now", "may"),
    [
        (9 * GIB, [], 1 * GIB, 1 * GIB, True),  # one always runs
        (2 * GIB, [2 * GIB], 8 * GIB, 6 * GIB, True),
        (2 * GIB, [2 * GIB], 8 * GIB, 1 * GIB, False),  # another program has taken it
        (2 * GIB, [3 * GIB, 4 * GIB], 8 * GIB, 7 * GIB, False),  # those that run have not taken theirs yet
        (1 * GIB, [3 * GIB, 4 * GIB], 8 * GIB, 7 * GIB, True),  # exactly
        (2 * GIB, [2 * GIB], None, None, True),  # nothing is known
        (2 * GIB, [2 * GIB], None, 1 * GIB, False),
        (0, [9 * GIB], 1 * GIB, 1 * GIB, True),  # takes nothing: a package
    ],
)
def test_may_start(estimate: int, running: list[int], at_rest: int | None, now: int | None, may: bool) -> None:
    assert may_start(estimate, running, at_rest, now) is may


def test_an_estimate_is_the_last_peak_or_made_from_the_weights() -> None:
    assert estimate_bytes("engine", GIB, 10 * GIB) == 11 * GIB
    assert estimate_bytes("engine", GIB, None) == BASE["engine"] + int(PER_BYTE["engine"] * GIB)
    assert estimate_bytes("convert", GIB, None) == BASE["convert"]
    assert estimate_bytes("package", GIB, None) == 0


def machine(tmp_path: Path, groups: str, files: dict[str, str], available_kib: int = 8 << 20) -> int | None:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 16000000 kB\nMemAvailable:   {available_kib} kB\n")
    (proc / "self" / "cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return free_bytes(proc, tmp_path / "groups")


def test_without_a_limit_it_is_what_linux_calls_available(tmp_path: Path) -> None:
    files = {"job/memory.max": "max\n", "job/memory.current": "1\n"}
    assert machine(tmp_path, "0::/job\n", files) == 8 * GIB


def test_a_version_2_group_bounds_it_and_page_cache_is_free(tmp_path: Path) -> None:
    files = {
        "job/memory.max": f"{4 * GIB}\n",
        "job/memory.current": f"{3 * GIB}\n",
        "job/memory.stat": f"anon 5\ninactive_file {1 * GIB}\n",
    }
    assert machine(tmp_path, "0::/job\n", files) == 2 * GIB


def test_a_group_above_bounds_it_too(tmp_path: Path) -> None:
    files = {
        "a/memory.max": f"{2 * GIB}\n",
        "a/memory.current": f"{1 * GIB}\n",
        "a/b/memory.max": "max\n",
        "a/b/memory.current": "0\n",
    }
    assert machine(tmp_path, "0::/a/b\n", files) == 1 * GIB


def test_a_version_1_group_bounds_it(tmp_path: Path) -> None:
    files = {
        "memory/job/memory.limit_in_bytes": f"{4 * GIB}\n",
        "memory/job/memory.usage_in_bytes": f"{3 * GIB}\n",
        "memory/job/memory.stat": f"cache 1\ntotal_inactive_file {GIB // 2}\n",
        "memory/memory.limit_in_bytes": f"{2**63 - 4096}\n",
        "memory/memory.usage_in_bytes": f"{3 * GIB}\n",
    }
    assert machine(tmp_path, "5:cpu:/job\n4:memory:/job\n0::/\n", files) == GIB + GIB // 2


def test_a_group_that_is_the_hosts_path_is_bounded_by_what_the_container_sees(tmp_path: Path) -> None:
    files = {"memory.max": f"{2 * GIB}\n", "memory.current": f"{1 * GIB}\n"}
    assert machine(tmp_path, "0::/system.slice/docker-4711.scope\n", files) == 1 * GIB


def test_a_group_beyond_its_limit_has_nothing_left(tmp_path: Path) -> None:
    files = {"job/memory.max": f"{2 * GIB}\n", "job/memory.current": f"{3 * GIB}\n"}
    assert machine(tmp_path, "0::/job\n", files) == 0


def test_where_nothing_can_be_read_there_is_no_limit(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "no proc", tmp_path / "no groups") is None


def test_this_machine_has_some() -> None:
    found = free_bytes()
    assert found is None or found > 0


def test_the_room_counts_what_runs() -> None:
    sizes = {"a": 4 * GIB, "b": 4 * GIB, "c": 1 * GIB}
    a, b, c = (Step(name, "m", "engine", "run", Reason("new", "")) for name in "abc")
    limit = MemoryLimit(lambda step: sizes[step.id], lambda: 6 * GIB)
    assert limit.allows(a)
    limit.acquire(a)
    assert not limit.allows(b)
    assert limit.allows(c)
    limit.acquire(c)
    limit.release(a)
    assert limit.allows(b)
