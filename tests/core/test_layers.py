"""Imports follow the layers of docs/architecture.md and have no cycles. Core needs no installed package.

Folders are small."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from pathlib import Path

import grimp

import trtbuild.core

ROOT = Path(__file__).parents[2]

#: Packages that core does not need.
EXTERNAL = [
    "torch",
    "numpy",
    "onnx",
    "onnxscript",
    "tensorrt",
    "tensorrt_rtx",
    "pydantic",
    "click",
    "rich",
    "yaml",
    "diskcache",
    "xxhash",
]


def test_imports_follow_the_layers() -> None:
    process = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "0 broken" in process.stdout


def modules_of_core() -> list[str]:
    modules = [module.name for module in pkgutil.walk_packages(trtbuild.core.__path__, "trtbuild.core.")]
    assert "trtbuild.core.planning.model_plan" in modules
    return modules


def test_core_imports_without_any_installed_package() -> None:
    program = f"""
import sys
for name in {EXTERNAL!r}:
    sys.modules[name] = None  # importing it raises ImportError
for name in {modules_of_core()!r}:
    __import__(name)
"""
    process = subprocess.run([sys.executable, "-S", "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_importing_core_writes_no_file_or_environment_variable_and_starts_no_process_or_connection() -> None:
    program = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
import trtbuild
seen = []
def hook(event, args):
    writes = event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR)
    if writes or event in ("socket.connect", "subprocess.Popen", "os.putenv"):
        seen.append((event, args))
sys.addaudithook(hook)
for name in {modules_of_core()!r}:
    __import__(name)
assert not seen, seen
open(os.devnull, "w")
assert [event for event, _ in seen] == ["open"], "the hook sees a file that is written"
"""
    process = subprocess.run([sys.executable, "-B", "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_imports_have_no_cycles() -> None:
    """Imports inside functions and imports for type annotations count, too."""
    graph = grimp.build_graph("trtbuild", include_external_packages=False)
    remaining = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    while leaves := [module for module, needed in remaining.items() if not needed & remaining.keys()]:
        for module in leaves:
            del remaining[module]
    assert sorted(remaining) == []


def test_folders_are_small_and_have_a_docstring() -> None:
    """A folder has at most 20 Python files, and the docstring of its `__init__` has at most ten lines."""
    for folder in [path.parent for path in (ROOT / "trtbuild").rglob("__init__.py")]:
        assert len(list(folder.glob("*.py"))) <= 20, folder
        docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        assert 1 <= len(docstring.splitlines()) <= 10, folder


def test_folders_of_tests_are_small() -> None:
    folders = [path for path in (ROOT / "tests").rglob("*") if path.is_dir()]
    assert [folder for folder in folders if len(list(folder.glob("test_*.py"))) > 20] == []
