"""Findings about Python, about several installations of trtbuild, and about completion in a shell."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trtbuild.driver.doctor import interpreter


def test_one_installation_has_no_problem() -> None:
    assert [finding.status for finding in interpreter.check_installations()] == ["ok"]


def test_a_second_package_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trtbuild").mkdir()
    (tmp_path / "trtbuild" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    first, second = interpreter.check_installations()
    assert first.status == "ok"
    assert second.status == "problem"
    assert str(tmp_path / "trtbuild") in second.text
    assert "PYTHONPATH" in (second.fix or "")


def test_a_second_distribution_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    information = tmp_path / "trtbuild-0.0.1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: trtbuild\nVersion: 0.0.1\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (finding,) = [finding for finding in interpreter.check_installations() if finding.status == "problem"]
    assert "0.0.1" in finding.text
    assert "pip uninstall" in (finding.fix or "")


def test_a_python_that_is_too_old_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "OLDEST_PYTHON", (9, 9))
    assert interpreter.check_python().status == "problem"


@pytest.mark.parametrize(("shell", "line"), [("/bin/zsh", "zshrc"), ("/usr/bin/fish", "completions/"), ("", "bashrc")])
def test_the_command_for_completion_is_that_of_the_users_shell(
    monkeypatch: pytest.MonkeyPatch, shell: str, line: str
) -> None:
    monkeypatch.setenv("SHELL", shell)
    assert line in (interpreter.completion_hint().fix or "")
