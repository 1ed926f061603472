"""Findings about the GPU and the clock."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from trtbuild.driver.doctor import machine


def test_a_clock_that_differs_from_the_file_system_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine.check_clock(tmp_path / "not" / "there").status == "ok"
    real = machine.time.time
    monkeypatch.setattr(machine.time, "time", lambda: real() + 3600)
    finding = machine.check_clock(tmp_path)
    assert finding.status == "warning"
    assert "behind" in finding.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("output", "status", "text"),
    [("sms\n", "ok", "no GPU found"), ("sms 89 89\n", "ok", "SM 89"), ("sms 90\n", "warning", "builds for SM 90")],
)
def test_the_finding_about_the_gpu_follows_from_the_drivers_answer(
    monkeypatch: pytest.MonkeyPatch, output: str, status: str, text: str
) -> None:
    monkeypatch.setattr(machine.table, "installed_version", lambda name: "1.7.1" if name == "tensorrt-rtx" else None)
    monkeypatch.setattr(machine.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, output, ""))
    finding = machine.check_gpu()
    assert finding.status == status
    assert text in finding.text


def test_a_driver_that_ends_the_process_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> Any:
        return subprocess.CompletedProcess([], -11, "", "")

    monkeypatch.setattr(machine.subprocess, "run", run)
    assert machine.check_gpu().status == "warning"
