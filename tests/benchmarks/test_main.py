"""`python -m benchmarks` measures, and prints and writes the rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_benchmarks(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_measures_digests_of_a_small_file(tmp_path: Path) -> None:
    small = ("--weights-gb", "0.02", "--cold-repeats", "1", "--work", str(tmp_path / "work"))
    process = run_benchmarks("digest", *small, "--json", str(tmp_path / "rows.json"))
    assert process.returncode == 0, process.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["bound"] for row in rows] == [2.0, None, 1.3, None]
    assert all(row["ratio"] > 0 for row in rows)
    assert "new" in process.stdout and "≤ 1.3 ×" in process.stdout


def test_a_failed_benchmark_is_reported_and_exits_with_1(tmp_path: Path) -> None:
    process = run_benchmarks("restore", "--trtbuild", "/bin/false", "--work", str(tmp_path / "work"), "--layers", "1")
    assert process.returncode == 1
    assert "0 met, 0 not met, 1 failed ['restore']" in process.stdout
    assert "/bin/false build: exit 1" in process.stderr


def test_rejects_an_unknown_benchmark() -> None:
    process = run_benchmarks("nothing")
    assert process.returncode == 2
    assert "invalid choice: 'nothing'" in process.stderr
