"""The lean and dispatch runtimes: how their versions and modules are found. Files stand in for the distributions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trtbuild.errors import ToolchainMissing
from trtbuild.toolchain.libraries.runtimes import RUNTIMES, installed_libraries, installed_runtime, load_runtime
from trtbuild.toolchain.libraries.table import FLAVOURS

MODULES = [module for runtime in RUNTIMES.values() for module in runtime.modules]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder on ``sys.path``. No other folder on the path has a module of these runtimes."""
    without = [entry for entry in sys.path if not any((Path(entry) / module).is_dir() for module in MODULES)]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *without])
    for module in MODULES:
        monkeypatch.delitem(sys.modules, module, raising=False)
    yield tmp_path
    for module in MODULES:
        sys.modules.pop(module, None)


def write_distribution(site: Path, name: str, version: str) -> None:
    information = site / f"{name}-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize(
    ("distributions", "version"),
    [
        ({}, None),
        ({"tensorrt_lean": "8.6.0"}, "8.6.0"),
        ({"tensorrt_lean": "8.6.1.post1", "tensorrt_lean_bindings": "8.6.1"}, "8.6.1"),
        ({"tensorrt_lean_cu12_bindings": "10.3.0"}, "10.3.0"),  # the distribution tensorrt-lean-cu12 is not installed
        ({"tensorrt_lean": "11.4.0.106", "tensorrt_lean_cu13_bindings": "11.4.0.106"}, "11.4.0.106"),
        ({"tensorrt_dispatch": "11.4.0.106", "tensorrt": "10.3.0"}, None),
    ],
)
def test_the_version_is_that_of_the_bindings(site: Path, distributions: dict[str, str], version: str | None) -> None:
    for name, installed_version in distributions.items():
        write_distribution(site, name, installed_version)
    assert installed_runtime("tensorrt_lean") == version


def test_all_libraries_that_run_engines_are_listed(site: Path) -> None:
    write_distribution(site, "tensorrt_dispatch_cu13_bindings", "11.4.0.106")
    libraries = installed_libraries()
    assert list(libraries) == [*FLAVOURS, *RUNTIMES]
    assert libraries["tensorrt_dispatch"] == "11.4.0.106" and libraries["tensorrt_lean"] is None


@pytest.mark.parametrize("module", RUNTIMES["tensorrt_lean"].modules)
def test_imports_the_module_that_is_installed(site: Path, module: str) -> None:
    (site / f"{module}.py").write_text("__version__ = '8.6.0'\n")
    assert load_runtime("tensorrt_lean", "8.6.0").__name__ == module


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "there is no module tensorrt_lean_bindings or tensorrt_lean"),
        ("from tensorrt_bindings import *", "No module named 'tensorrt_bindings'"),
        ("raise ImportError('libnvinfer_lean.so.10: cannot open shared object file')", "libnvinfer_lean.so.10: cannot"),
    ],
)
def test_an_import_error_names_the_reason(site: Path, content: Any, reason: str) -> None:
    if content is not None:
        (site / "tensorrt_lean_bindings.py").write_text(content)
    with pytest.raises(ToolchainMissing, match=r"tensorrt_lean 10\.3\.0 cannot be loaded: ") as caught:
        load_runtime("tensorrt_lean", "10.3.0")
    assert reason in caught.value.text
    assert caught.value.hint == "pip install --force-reinstall 'tensorrt-lean==10.3.0'"
