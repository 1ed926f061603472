"""Packages on a machine that has only the lean or the dispatch runtime of TensorRT, from `load` to results.

A fake of TensorRT 8.6 replaces the runtime. It has the module name of a small runtime, and the version that the test
chooses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import trtbuild
from tests.runtime.rigs import Rig, rig
from tests.runtime.test_on_a_gpu import write_package
from trtbuild.driver.packages import engines as engines_of_packages
from trtbuild.driver.packages import machine
from trtbuild.errors import NoFittingTarget
from trtbuild.toolchain.libraries import devices, runtimes, table

__all__ = ["rig"]

#: Attributes that trtbuild uses for engines of 8.6. trtbuild checks that the classes of a later runtime have them, too.
_NAMES_OF_ENGINES = SimpleNamespace(create_execution_context_without_device_memory=None, device_memory_size=0)
_NAMES_OF_CONTEXTS = SimpleNamespace(device_memory=0)

Install = Callable[..., list[Any]]


@pytest.fixture
def install(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A function that installs runtimes of the given versions, and no full TensorRT. It returns a list, to which each
    runtime object that trtbuild creates is added."""

    def install_runtimes(**versions: str) -> list[Any]:
        monkeypatch.setattr(runtimes, "installed_runtime", versions.get)
        created: list[Any] = []
        make = rig.trt.Runtime

        def recorded_make(logger: Any) -> Any:
            created.append(make(logger))
            return created[-1]

        rig.trt.Runtime = recorded_make
        for name, version in versions.items():
            rig.trt.__version__ = version
            monkeypatch.setitem(sys.modules, f"{name}_bindings", rig.trt)  # type: ignore[arg-type]
        return created

    rig.trt.ICudaEngine, rig.trt.IExecutionContext = _NAMES_OF_ENGINES, _NAMES_OF_CONTEXTS  # type: ignore[attr-defined]
    monkeypatch.setattr(devices, "device_sms", lambda: (90,))
    monkeypatch.setattr(table, "installed_version", lambda name: None)
    monkeypatch.setattr(engines_of_packages, "choose_memory", lambda ordinal: rig.memory)
    monkeypatch.setattr(engines_of_packages, "find_gpu", lambda ordinal: None)
    monkeypatch.setattr(machine, "_current_gpu_number", lambda: 0)
    for module in ("torch", "tensorrt", "tensorrt_rtx"):
        monkeypatch.setitem(sys.modules, module, None)
    return install_runtimes


def package(rig: Rig, path: Path, **target: Any) -> Path:
    write_package(path, {name: rig.trt.plan("affine") for name in ("first", "second")}, **target)
    return path


@pytest.mark.parametrize("name", ["tensorrt_lean", "tensorrt_dispatch"])
def test_version_compatible_engines_run_without_a_full_tensorrt(
    name: str, install: Install, rig: Rig, tmp_path: Path
) -> None:
    created_runtimes = install(**{name: "10.16.1.11"})
    module = trtbuild.load(package(rig, tmp_path / "rows", version_compatible=True)).module()
    for rows in (1, 8, 32, 3):
        value, data = rig.values(rows, 4, stream=rig.stream())
        np.testing.assert_array_equal(module(value)["last"].numpy(), (data * 2 + 1) * 2 + 1)
    (runtime,) = created_runtimes
    assert runtime.engine_host_code_allowed


def test_the_lean_runtime_of_the_same_version_runs_plans_that_do_not_contain_it(
    install: Install, rig: Rig, tmp_path: Path
) -> None:
    created_runtimes = install(tensorrt_lean="8.6.1")
    path = package(rig, tmp_path / "rows", version_compatible=True, exclude_lean_runtime=True)
    value, data = rig.values(3, 4, stream=rig.stream())
    np.testing.assert_array_equal(trtbuild.load(path).module()(value)["middle"].numpy(), data * 2 + 1)
    assert not hasattr(created_runtimes[0], "engine_host_code_allowed")


@pytest.mark.parametrize(
    ("fields", "versions", "text", "hint"),
    [
        (
            {},
            {"tensorrt_lean": "10.16.1.11", "tensorrt_dispatch": "10.16.1.11"},
            "its plans are not version-compatible, so only tensorrt 8.6.1 runs them",
            "pip install 'tensorrt==8.6.1', or build the package with builder: {version_compatible: true}",
        ),
        (
            {"version_compatible": True},
            {"tensorrt_dispatch": "11.4.0.106"},
            "tensorrt_dispatch 11.4.0.106 runs version-compatible plans of 10.0 and later",
            "pip install 'tensorrt-dispatch>=8.6.1,<11'",
        ),
        (
            {"version_compatible": True, "exclude_lean_runtime": True},
            {"tensorrt_dispatch": "8.6.1"},
            "without it tensorrt_dispatch 8.6.1 does not run them",
            "pip install 'tensorrt-lean==8.6.1'",
        ),
    ],
)
def test_other_plans_are_refused_with_the_command_that_installs_a_library(
    fields: dict[str, bool],
    versions: dict[str, str],
    text: str,
    hint: str,
    install: Install,
    rig: Rig,
    tmp_path: Path,
) -> None:
    created_runtimes = install(**versions)
    with pytest.raises(NoFittingTarget) as caught:
        trtbuild.load(package(rig, tmp_path / "rows", **fields))
    assert text in caught.value.text and hint in str(caught.value.hint)
    assert created_runtimes == []
