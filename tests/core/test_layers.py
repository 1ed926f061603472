"""The layers of docs/architecture.md hold, and core needs nothing that is heavy."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

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
    modules = [f"trtbuild.core.{found.name}" for found in pkgutil.iter_modules(trtbuild.core.__path__)]
    assert "trtbuild.core.planning" in modules
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
import trtbuild.core.planning, trtbuild.core.chain, trtbuild.core.shapes
assert not seen, seen
"""
    done = subprocess.run([sys.executable, "-B", "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
