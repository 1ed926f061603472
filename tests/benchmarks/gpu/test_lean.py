"""The measurement of TensorRT's lean and dispatch runtimes: its project, its processes and its rows."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import trtbuild
from benchmarks.figure import Check
from benchmarks.gpu.cases import cases
from benchmarks.gpu.lean import __main__ as lean
from benchmarks.gpu.lean import process
from benchmarks.gpu.lean.project import MODELS, write_lean
from benchmarks.gpu.project import Hardware
from tests.runtime.rigs import Rig, rig
from trtbuild.core.packages import engine_libraries
from trtbuild.driver.packages import machine
from trtbuild.errors import NoFittingTarget
from trtbuild.runtime.memory import choosing

__all__ = ["rig"]


def test_one_network_is_built_in_three_ways(tmp_path: Path) -> None:
    hardware = Hardware(90, "tensorrt", "8.6.0", tactic_sources=())
    builders = {case.name: case.model.builder for case in cases(write_lean(tmp_path, hardware))}
    settings = {name: (each.version_compatible, each.exclude_lean_runtime) for name, each in builders.items()}
    assert settings == {
        "exact": (False, False),
        "compatible": (True, False),
        "without_lean": (True, True),
    }
    assert all(builder.tactic_sources for builder in builders.values())


def write_wheel(folder: Path, name: str, *members: str, tag: str = "py3-none-any") -> None:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{tag}.whl", "w") as archive:
        archive.writestr(f"{name}.dist-info/WHEEL", f"Tag: {tag}\n")
        for member in members:
            archive.writestr(member, "")


THIS_PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}-none-linux_x86_64"


def test_the_wheels_of_each_runtime_and_version_get_a_folder(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    write_wheel(wheels, "tensorrt_lean-8.6.0", "tensorrt_lean/libnvinfer_lean.so.8", tag="cp310-none-linux_x86_64")
    write_wheel(wheels, "tensorrt_lean_cu13_libs-10.16.1.11", "tensorrt_lean_libs/libnvinfer_lean.so.10")
    bindings = "tensorrt_lean_bindings/__init__.py"
    write_wheel(wheels, "tensorrt_lean_cu13_bindings-10.16.1.11", bindings, tag=THIS_PYTHON)
    write_wheel(wheels, "numpy-2.0.0")
    old, new = lean.unpack(wheels, tmp_path / "work")
    assert [str(old), str(new)] == ["tensorrt_lean 8.6.0", "tensorrt_lean 10.16.1.11"]
    assert [old.module, new.module] == ["tensorrt_lean", "tensorrt_lean_bindings"]
    assert [old.is_for_this_python, new.is_for_this_python] == [False, True]
    assert (new.folder / "tensorrt_lean_libs/libnvinfer_lean.so.10").is_file() and (new.folder / bindings).is_file()


def test_a_process_with_a_lean_runtime_does_not_find_the_full_tensorrt(tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", "tensorrt_lean_cu13_bindings-10.16.1.11", "tensorrt_lean_bindings/__init__.py")
    measurement = lean.Lean(tmp_path, tmp_path / "wheels", tmp_path / "work")
    (runtime,) = measurement.runtimes
    program = (
        "import importlib.util as u; print([bool(u.find_spec(name)) for name in "
        "('trtbuild', 'benchmarks', 'numpy', 'click', 'tensorrt_lean_bindings', 'tensorrt_rtx', 'tensorrt')])"
    )
    python_paths: list[str] = []

    def note_python_path(arguments: object, variables: Mapping[str, str]) -> None:
        python_paths.append(variables["PYTHONPATH"])

    measurement._run = note_python_path  # type: ignore[assignment, method-assign]
    measurement._process([], runtime)
    finder = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": python_paths[0]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finder.stdout.strip() == "[True, True, True, True, True, False, False]", finder.stderr


class FakeModule:
    """A network with two outputs. The first output is wrong by `error`."""

    def __init__(self, rig: Rig, error: float) -> None:
        self.rig = rig
        self.error = error

    def __call__(self, value: Any) -> tuple[Any, Any]:
        data = value.numpy()
        stream = self.rig.memory.stream()
        return self.rig.array(data * 2 + self.error, stream), self.rig.array(data + 1, stream)


def test_the_outputs_of_all_packages_are_compared(
    rig: Rig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors = {"exact": 0.0, "compatible": 1.0}

    def load(path: Path) -> Any:
        if path.name not in errors:
            raise NoFittingTarget("another version", hint="install it")
        return SimpleNamespace(module=lambda: FakeModule(rig, errors[path.name]), target=None)

    monkeypatch.setattr(trtbuild, "load", load)
    monkeypatch.setattr(machine, "library_for", lambda target: "tensorrt 8.6.0")
    monkeypatch.setattr(choosing, "choose_memory", lambda ordinal: rig.memory)
    monkeypatch.setattr(process, "_TIMED_CALLS", 3)
    monkeypatch.setattr(process, "POINTS", process.POINTS[:3])
    exact, compatible, without_lean, modules = process.run(tmp_path, tmp_path, writes=True)
    assert (exact["library"], exact["worst"]) == ("tensorrt 8.6.0", 0.0) and exact["call_s"] > 0
    assert compatible["worst"] > 0.05  # an error of 1.0, divided by a largest result of less than 20
    assert without_lean == {
        "model": "without_lean",
        "error": "NoFittingTarget",
        "text": "another version",
        "hint": "install it",
    }
    assert "tensorrt" not in modules["modules"]


def test_any_version_is_tried_only_on_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engine_libraries, "_oldest_plan", engine_libraries._oldest_plan)

    def refuse(path: Path) -> None:
        raise NoFittingTarget("no")

    monkeypatch.setattr(trtbuild, "load", refuse)
    list(process.run(tmp_path, tmp_path))
    assert engine_libraries._oldest_plan("11.4.0") == (10, 0)
    list(process.run(tmp_path, tmp_path, any_version=True))
    assert engine_libraries._oldest_plan("11.4.0") == (8, 6)


def answers_by_call(rig: Rig, monkeypatch: pytest.MonkeyPatch, plan: Path) -> dict[str, Any]:
    """Return call → answer of the fake TensorRT, which takes the place of the bindings."""
    monkeypatch.setitem(sys.modules, "tensorrt_lean_bindings", rig.trt)  # type: ignore[arg-type]
    rig.trt.logger = None  # otherwise the fake would keep its first logger, as TensorRT does
    answers = process.answers("tensorrt_lean_bindings", plan, host_code=True)
    return {answer["call"]: answer for answer in answers}


def test_the_bindings_answer_every_call(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tmp_path / "p0.plan"
    plan.write_bytes(rig.trt.plan("affine"))
    answers = answers_by_call(rig, monkeypatch, plan)
    assert answers["deserialize_cuda_engine"]["value"] is True
    assert answers["num_io_tensors"]["value"] == "2"
    assert "AttributeError" in answers["device_memory_size_v2"]["value"]
    assert "with profile 0" in answers["create_execution_context_without_device_memory, context 2"]["value"]
    plan.write_bytes(b"not a plan")
    refused = answers_by_call(rig, monkeypatch, plan)
    assert refused["deserialize_cuda_engine"]["value"] is False and refused["deserialize_cuda_engine"]["log"]
    assert list(refused) == ["Runtime", "deserialize_cuda_engine"]


def ended_process(values: list[Mapping[str, Any]], status: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], status, "\n".join(map(json.dumps, values)), "")


def test_rows_say_whether_each_package_did_what_was_expected(tmp_path: Path) -> None:
    measurement = lean.Lean(tmp_path, tmp_path, tmp_path / "work")
    runs = {"library": "tensorrt_lean 10.16", "worst": 1e-6, "where": [1, 2], "call_s": 1e-4}
    values = [
        {"model": "exact", "error": "NoFittingTarget", "text": "a", "hint": "b"},
        {"model": "compatible", **runs},
        {"modules": ["tensorrt_lean_bindings"]},
    ]
    rows = list(measurement._packages("lean", ended_process(values, -signal.SIGSEGV), ["compatible"]))
    checks = {row.what: row.met for row in rows if isinstance(row, Check)}
    assert checks == {
        "lean: exact is refused": True,
        "lean: compatible runs": True,
        "lean: without_lean": False,  # the process crashed before this package
        "lean: the full TensorRT is not imported": True,
    }
    wrong = [{"model": name, **runs, "worst": 0.5} for name in MODELS]
    package_checks = [
        row for row in measurement._packages("lean", ended_process(wrong), MODELS) if isinstance(row, Check)
    ]
    assert package_checks and not any(check.met for check in package_checks)
    assert measurement.details["lean"]["ended"] == "status 0"
