"""`trtbuild doctor` on a complete installation, and on installations and projects with faults."""

from __future__ import annotations

import os
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CommandLine
from tests.projects import copy_project, edit

#: Module → distribution. With the fixture `trtbuild`, doctor imports small fakes of these modules.
MODULES = {
    "torch": "torch",
    "onnx": "onnx",
    "onnx_ir": "onnx-ir",
    "onnxscript": "onnxscript",
    "tensorrt_rtx": "tensorrt-rtx",
}


@pytest.fixture
def trtbuild(command_line: CommandLine) -> CommandLine:
    copy_project("mlp", command_line.project)
    modules = command_line.project.parent / "modules"
    modules.mkdir()
    for module, distribution in MODULES.items():
        (modules / f"{module}.py").write_text(f"__version__ = {metadata.version(distribution)!r}\n")
    command_line.environment["PYTHONPATH"] = str(modules)
    command_line.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command_line.environment["LC_ALL"] = "C.UTF-8"
    return command_line


def break_module(trtbuild: CommandLine, module: str, text: str) -> None:
    path = trtbuild.project.parent / "modules" / f"{module}.py"
    assert path.exists()
    path.write_text(text)


def finding_of(document: Any, name: str, status: str) -> Any:
    (finding,) = [check for check in document["checks"] if check["name"] == name and check["status"] == status]
    return finding


def test_a_complete_installation_has_no_problem(command_line: CommandLine) -> None:
    command_line.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command_line.environment["LC_ALL"] = "C.UTF-8"
    copy_project("mlp", command_line.project)
    document = command_line("doctor")  # real imports
    assert document["schema"] == "trtbuild.doctor/1"
    assert document["ok"]
    assert [check for check in document["checks"] if check["status"] == "problem"] == []
    assert finding_of(document, "torch", "ok")["text"] == metadata.version("torch")
    assert next(check["text"] for check in document["checks"] if check["name"] == "gpu")
    assert sorted(path.name for path in command_line.project.iterdir()) == ["net.py", "trtbuild.yaml"]
    assert not command_line.cache.exists()


@pytest.mark.parametrize(
    ("module", "text", "message", "fix"),
    [
        ("torch", "raise OSError('libtorch_cpu.so: file too short')", "file too short", "--force-reinstall 'torch=="),
        ("onnx", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV", "--force-reinstall 'onnx=="),
        ("onnx_ir", "import sys; sys.exit(3)", "status 3", "'onnx-ir=="),
        ("onnxscript", "__version__ = '0.0.1'", "is 0.0.1", "pip uninstall -y onnxscript"),
        ("tensorrt_rtx", "import os; os.abort()", "SIGABRT", "'tensorrt-rtx=="),
        ("tensorrt_rtx", "__version__ = '1.4.0'", "is 1.4.0", "pip uninstall -y tensorrt-rtx"),
    ],
)
def test_a_broken_library_is_a_problem_with_a_command_that_repairs_it(
    trtbuild: CommandLine, module: str, text: str, message: str, fix: str
) -> None:
    break_module(trtbuild, module, text)
    document = trtbuild("doctor", expect=1)
    assert not document["ok"]
    finding = finding_of(document, MODULES[module], "problem")
    assert message in finding["text"]
    assert fix in finding["fix"]
    assert [check["name"] for check in document["checks"] if check["status"] == "problem"] == [MODULES[module]]
    shown = trtbuild.run("doctor")
    assert shown.returncode == 1
    assert "PROBLEM" in shown.stdout
    assert "1 problem" in shown.stdout


def test_a_cache_that_cannot_be_written_is_a_problem(trtbuild: CommandLine) -> None:
    document = trtbuild("doctor", environment={"TRTBUILD_CACHE_DIR": "/proc/trtbuild"}, expect=1)
    finding = finding_of(document, "cache", "problem")
    assert "/proc/trtbuild cannot be written" in finding["text"]
    assert "TRTBUILD_CACHE_DIR" in finding["fix"]


def test_a_cache_of_a_newer_format_is_a_problem(trtbuild: CommandLine) -> None:
    trtbuild.cache.mkdir()
    (trtbuild.cache / "format").write_text("trtbuild.store/2\n")
    finding = finding_of(trtbuild("doctor", expect=1), "cache", "problem")
    assert "trtbuild.store/2" in finding["text"]
    assert "upgrade trtbuild" in finding["fix"]


def test_files_of_dead_processes_and_damaged_entries_are_reported(trtbuild: CommandLine) -> None:
    for name in ("tmp", "quarantine"):
        (trtbuild.cache / name).mkdir(parents=True)
        (trtbuild.cache / name / "1-abc").write_text("?")
    (trtbuild.cache / "format").write_text("trtbuild.store/1\n")
    os.utime(trtbuild.cache / "tmp" / "1-abc", (time.time() - 7200,) * 2)
    document = trtbuild("doctor")
    assert "1 damaged entry is in " in finding_of(document, "quarantine", "warning")["text"]
    assert finding_of(document, "leftovers", "warning")["fix"] == "trtbuild cache gc"
    assert (trtbuild.cache / "tmp" / "1-abc").exists()  # doctor removes nothing


def test_a_state_directory_that_is_a_file_is_a_warning(trtbuild: CommandLine) -> None:
    (trtbuild.project / ".trtbuild").write_text("?")
    assert "it is not a directory" in finding_of(trtbuild("doctor"), "state", "warning")["text"]


def test_an_invalid_manifest_is_a_problem_and_a_missing_manifest_is_a_warning(trtbuild: CommandLine) -> None:
    edit(trtbuild.project / "trtbuild.yaml", "sm: 89", "smm: 89")
    finding = finding_of(trtbuild("doctor", expect=1), "manifest", "problem")
    assert finding["text"].startswith("trtbuild.yaml:3")
    (trtbuild.project / "trtbuild.yaml").unlink()
    assert finding_of(trtbuild("doctor"), "manifest", "warning")["fix"] == "trtbuild init"


def test_a_target_that_cannot_be_built_here_is_a_warning(trtbuild: CommandLine) -> None:
    edit(trtbuild.project / "trtbuild.yaml", "sm: 89", "sm: 90")
    finding = finding_of(trtbuild("doctor"), "target", "warning")
    assert "SM 90" in finding["text"]


def test_another_command_on_path_and_another_encoding_are_warnings(trtbuild: CommandLine, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "trtbuild").write_text("#!/usr/bin/python2\n")
    (other / "trtbuild").chmod(0o755)
    environment = {
        "PATH": f"{other}:{os.environ['PATH']}",
        "LC_ALL": "POSIX",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }
    document = trtbuild("doctor", environment=environment)
    finding = finding_of(document, "command", "warning")
    assert str(other) in finding["text"]
    assert str(Path(sys.executable).parent) in finding["fix"]
    assert finding_of(document, "encoding", "warning")["fix"] == "export LANG=C.UTF-8"


def test_a_missing_directory_is_a_usage_error(trtbuild: CommandLine) -> None:
    assert trtbuild.run("doctor", "-C", "nowhere").returncode == 2
