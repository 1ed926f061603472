"""Imports in a child process, and the findings that doctor derives from them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trtbuild.driver.doctor import libraries
from trtbuild.driver.doctor.libraries import ImportResult, compare_versions, import_in_child


def test_an_import_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "endless.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "longer than" in (import_in_child("endless", limit_s=1.0).error or "")


def test_the_output_of_a_module_is_not_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chatty.py").write_text("print('hello')\n__version__ = '1.2'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert import_in_child("chatty") == ImportResult("1.2", str(tmp_path / "chatty.py"))


def test_a_version_that_differs_from_the_metadata_is_a_problem() -> None:
    assert compare_versions("torch", "2.13.0", ImportResult("2.13.0")).status == "ok"
    assert compare_versions("torch", "2.13.0", ImportResult("")).status == "ok"  # the module has no version
    assert compare_versions("tensorrt", "8.6.0", ImportResult("8.6.1"), expected="8.6.1").status == "ok"
    finding = compare_versions("torch", "2.13.0+cpu", ImportResult("2.12.0", "/x/torch/__init__.py"))
    assert finding.status == "problem"
    assert finding.fix == "pip uninstall -y torch && pip install --force-reinstall 'torch==2.13.0'"


def test_without_torch_the_finding_says_what_the_machine_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "_installed_version", lambda name: None)
    monkeypatch.setattr(libraries.runtimes, "installed_runtime", lambda name: None)
    (finding,) = libraries.check_torch_libraries()
    assert finding.status == "ok"
    assert "downloads results" in finding.text
    assert "pip install 'trtbuild[torch]'" in (finding.fix or "")
    (finding,) = libraries.check_toolchains()
    assert finding.status == "warning"


def test_torch_without_onnx_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "_installed_version", lambda name: "1.0" if name == "torch" else None)
    monkeypatch.setattr(libraries, "import_in_child", lambda module: ImportResult("1.0"))
    statuses = {finding.name: finding.status for finding in libraries.check_torch_libraries()}
    assert statuses == {"torch": "ok", "onnx": "problem", "onnx-ir": "problem", "onnxscript": "problem"}


def write_distribution(folder: Path, name: str, version: str) -> None:
    information = folder / f"{name}-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (information / "RECORD").write_text(f"{name}/__init__.py,,\n")


def test_the_finding_recognizes_the_stub_of_tensorrt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensorrt.py").write_text("from tensorrt_libs import nothing\n")
    write_distribution(tmp_path, "tensorrt", "10.9.0")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(
        libraries,
        "import_in_child",
        lambda module: import_in_child(module) if module == "tensorrt" else ImportResult(""),
    )
    (finding,) = [finding for finding in libraries.check_toolchains() if finding.name == "tensorrt"]
    assert finding.status == "problem"
    assert "No module named 'tensorrt_libs'" in finding.text
    assert "stub" in finding.text
    assert "https://pypi.nvidia.com 'tensorrt==10.9.0'" in (finding.fix or "")


def test_distributions_of_different_versions_are_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_distribution(tmp_path, "tensorrt_rtx", "1.7.1")
    write_distribution(tmp_path, "tensorrt_rtx_cu13", "1.7.1")
    write_distribution(tmp_path, "tensorrt_rtx_cu13_libs", "1.4.0")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(libraries, "import_in_child", lambda module: ImportResult("1.7.1"))
    ok, mixed = libraries.check_toolchains()
    assert ok.status == "ok"
    assert mixed.status == "problem"
    assert "tensorrt_rtx_cu13_libs 1.4.0" in mixed.text
    assert mixed.fix == "pip uninstall -y tensorrt-rtx tensorrt_rtx_cu13_libs && pip install 'tensorrt-rtx==1.7.1'"


def only_runtimes(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], imported: ImportResult) -> None:
    """Pretend that only these runtimes (name → version) are installed. Each import has the result `imported`."""
    monkeypatch.setattr(libraries, "_installed_version", lambda name: None)
    monkeypatch.setattr(libraries.runtimes, "installed_runtime", versions.get)
    monkeypatch.setattr(libraries, "import_in_child", lambda module: imported)
    monkeypatch.setattr(sys, "path", [])


def test_a_runtime_is_enough_for_a_machine_that_does_not_build(monkeypatch: pytest.MonkeyPatch) -> None:
    only_runtimes(monkeypatch, {"tensorrt_dispatch": "10.7.0.post2"}, ImportResult("10.7.0"))
    toolchain, runtime = libraries.check_toolchains()
    assert (toolchain.status, runtime.status) == ("ok", "ok")
    assert "engines cannot be built here" in toolchain.text
    assert runtime.name == "tensorrt-dispatch"
    assert runtime.text == "10.7.0.post2: runs version-compatible engines of tensorrt"


@pytest.mark.parametrize(
    ("imported", "text"),
    [
        (ImportResult(error="No module named 'tensorrt_bindings'"), "cannot be imported: No module named"),
        (ImportResult("10.3.0", "/x/tensorrt_lean_bindings/__init__.py"), "__init__.py is 10.3.0"),
    ],
)
def test_a_runtime_that_cannot_be_used_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, imported: ImportResult, text: str
) -> None:
    only_runtimes(monkeypatch, {"tensorrt_lean": "10.16.1.11"}, imported)
    _toolchain, runtime = libraries.check_toolchains()
    assert runtime.status == "problem" and text in runtime.text
    assert "--force-reinstall 'tensorrt-lean==10.16.1.11'" in (runtime.fix or "")
