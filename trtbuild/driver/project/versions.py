"""Which versions of what are installed, from metadata alone: nothing is imported."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

#: Distributions that trtbuild works with, beside the libraries that it needs itself.
PARTS = ("torch", "onnx", "onnx-ir", "onnxscript", "numpy", "tensorrt-rtx", "tensorrt", "safetensors")


def installed(name: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def document() -> dict[str, Any]:
    """``trtbuild.version/1``: None for what is not installed."""
    return {
        "schema": "trtbuild.version/1",
        "ok": True,
        "trtbuild": installed("trtbuild"),
        "python": platform.python_version(),
        "platform": f"{platform.system().lower()}-{platform.machine().lower()}",
        "parts": {name: installed(name) for name in PARTS},
    }
