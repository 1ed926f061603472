"""The runtime can be imported without third-party packages, because it imports them only inside functions."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import trtbuild.runtime

BLOCKED = [
    "torch",
    "numpy",
    "onnx",
    "tensorrt",
    "tensorrt_rtx",
    "cuda",
    "pydantic",
    "click",
    "rich",
    "yaml",
    "diskcache",
]


def test_imports_without_any_other_package() -> None:
    modules = [module.name for module in pkgutil.walk_packages(trtbuild.runtime.__path__, "trtbuild.runtime.")]
    assert "trtbuild.runtime.calls.torch_part" in modules
    program = f"""
import sys
for name in {BLOCKED!r}:
    sys.modules[name] = None  # importing it raises ImportError
for name in ["trtbuild.driver.packages.loading", *{modules!r}]:
    __import__(name)
"""
    root = Path(__file__).parents[2]
    process = subprocess.run([sys.executable, "-S", "-c", program], cwd=root, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
