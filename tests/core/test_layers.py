"""The layers of docs/architecture.md hold, and core needs nothing that is heavy."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from pathlib import Path

import grimp

import trtbuild.core

ROOT = Path(__file__).parents[2]

HEAVY = [
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


def test_the_layers_hold() -> None:
    done = subprocess.run(
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
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_core_imports_with_nothing_installed_but_python() -> None:
    modules = [found.name for found in pkgutil.walk_packages(trtbuild.core.__path__, "trtbuild.core.")]
    assert "trtbuild.core.planning.model_plan" in modules
    program = f"""
import sys
for name in {HEAVY!r}:
    sys.modules[name] = None  # importing it is an ImportError
for name in {modules!r}:
    __import__(name)
"""
    done = subprocess.run([sys.executable, "-S", "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_core_touches_no_disk_clock_environment_or_network_when_it_is_imported() -> None:
    program = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import trtbuild
seen = []
def hook(event, args):
    if event in ("socket.connect", "subprocess.Popen", "os.putenv") or (
        event == "open" and not str(args[0]).endswith((".py", ".pyc")) and args[1] not in (None, "r", "rb")
    ):
        seen.append((event, args))
sys.addaudithook(hook)
import trtbuild.core.planning.model_plan, trtbuild.core.recipes.chain, trtbuild.core.model.shapes
assert not seen, seen
"""
    done = subprocess.run([sys.executable, "-B", "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_file_needs_itself() -> None:
    """No cycles of imports between files: those inside functions and those for types alone count as well."""
    graph = grimp.build_graph("trtbuild", include_external_packages=False)
    left = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    while leaves := [module for module, needed in left.items() if not needed & left.keys()]:
        for module in leaves:
            del left[module]
    assert sorted(left) == []


def test_rooms_are_small() -> None:
    """A folder has at most 20 files, and an `__init__` that says in at most ten lines what it is for."""
    for folder in [path.parent for path in (ROOT / "trtbuild").rglob("__init__.py")]:
        assert len(list(folder.glob("*.py"))) <= 20, folder
        said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        assert 1 <= len(said.splitlines()) <= 10, folder


def test_folders_of_tests_are_small() -> None:
    folders = [path for path in (ROOT / "tests").rglob("*") if path.is_dir()]
    assert [folder for folder in folders if len(list(folder.glob("test_*.py"))) > 20] == []
