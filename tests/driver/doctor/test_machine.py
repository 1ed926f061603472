"""GPU, clock and encoding."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from trtbuild.driver.doctor import machine


def test_clocks_that_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.clock(tmp_path / "not" / "there").status == "ok"
    real = machine.time.time
    monkeypatch.setattr(machine.time, "time", lambda: real() + 3600)
    finding = machine.clock(tmp_path)
    assert finding.status == "warning"
    assert "behind" in finding.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("said", "status", "text"),
    [("sms\n", "ok", "no GPU found"), ("sms 89 89\n", "ok", "SM 89"), ("sms 90\n", "warning", "builds for SM 90")],
)
def test_what_the_driver_says(monkeypatch: pytest.MonkeyPatch, said: str, status: str, text: str) -> None:
    monkeypatch.setattr(machine.table, "installed_version", lambda name: "1.7.1" if name == "tensorrt-rtx" else None)
    monkeypatch.setattr(machine.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, said, ""))
    finding = machine.gpu()
    assert finding.status == status
    assert text in finding.text


def test_a_driver_that_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def died(*_: Any, **__: Any) -> Any:
        return subprocess.CompletedProcess([], -11, "", "")

    monkeypatch.setattr(machine.subprocess, "run", died)
    assert machine.gpu().status == "warning"
