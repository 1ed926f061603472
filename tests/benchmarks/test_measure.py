"""A measurement has the time and memory of the command and its child processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.measure import CommandFailed, Median, Run, measure_alternately, run, run_alternately

_MIB = 1 << 20


def run_python(code: str, folder: Path, **settings: object) -> Run:
    return run([sys.executable, "-c", code], folder, **settings)  # type: ignore[arg-type]


def test_returns_output_and_times_of_the_command(tmp_path: Path) -> None:
    result = run_python("import time; time.sleep(0.3); print('hello')", tmp_path)
    assert result.stdout == b"hello\n"
    assert result.wall_s >= 0.3
    assert result.cpu_s > 0
    assert list(tmp_path.iterdir()) == []


def test_cpu_time_includes_child_processes(tmp_path: Path) -> None:
    use_cpu = "import time\nwhile time.process_time() < 0.4: pass"
    result = run_python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {use_cpu!r}])", tmp_path)
    assert result.cpu_s >= 0.4


def test_peak_memory_is_the_sum_over_the_process_tree(tmp_path: Path) -> None:
    child = f"import sys; data = bytearray(b'x') * ({100 * _MIB}); print(flush=True); sys.stdin.read()"
    parent = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        f"data = bytearray(b'x') * ({100 * _MIB})\n"
        "child.stdout.readline(); time.sleep(1); child.stdin.close(); child.wait()\n"
    )
    result = run_python(parent, tmp_path, measure_memory=True, sample_s=0.02)
    assert 200 * _MIB < result.peak_bytes < 300 * _MIB


def test_finds_libraries_that_a_child_process_maps(tmp_path: Path) -> None:
    child = "import _sqlite3, time; time.sleep(1)"
    result = run_python(
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])",
        tmp_path,
        watched=("libsqlite3", "libnothing"),
        sample_s=0.02,
    )
    assert result.mapped == {"libsqlite3"}


def test_a_failed_command_raises(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=r"exit 3\n(.|\n)*why"):
        run_python("import sys; print('why', file=sys.stderr); sys.exit(3)", tmp_path)


def test_kills_a_command_after_the_timeout(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="exit -9"):
        run_python("import time; time.sleep(60)", tmp_path, timeout_s=0.5)


def test_runs_candidates_alternately_and_returns_medians() -> None:
    order: list[str] = []
    times = iter([5.0, 100.0, 1.0, 3.0, 2.0, 200.0])

    def candidate(name: str) -> Run:
        order.append(name)
        return Run(next(times), 0.0, b"")

    medians = run_alternately(3, a=lambda: candidate("a"), b=lambda: candidate("b"))
    assert "".join(order) == "abbaab"
    assert medians["a"].wall_s == 3.0
    assert medians["b"].wall_s == 100.0
    assert isinstance(medians["a"], Median)


def test_times_are_those_of_the_runs_without_a_measurement_of_memory() -> None:
    def candidate(measure_memory: bool) -> Run:
        return Run(9.0, 9.0, b"", peak_bytes=7) if measure_memory else Run(2.0, 1.0, b"")

    median = measure_alternately(3, a=candidate)["a"]
    assert (median.wall_s, median.cpu_s, median.peak_bytes) == (2.0, 1.0, 7)
    assert [run.peak_bytes for run in median.runs] == [0, 0, 0, 7]


def test_the_cpu_time_contains_that_of_a_process_that_outlives_the_command(tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 0.6: pass"
    done = run_python(f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burn!r}])", tmp_path)
    assert done.cpu_s > 0.6


def test_after_a_run_orphans_do_not_become_children_of_this_process(tmp_path: Path) -> None:
    run_python("pass", tmp_path)
    waits = "import sys; sys.stdin.read()"
    starts_it = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {waits!r}], stdout=2).pid)"
    command = [sys.executable, "-c", starts_it]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as middle:
        assert middle.stdout is not None
        orphan = psutil.Process(int(middle.stdout.read()))
        middle.wait()
        assert orphan.is_running() and orphan.ppid() != os.getpid()
