"""The versions of the libraries that a verification runs."""

from __future__ import annotations

import contextlib

from trtbuild.errors import ToolchainMissing

#: The distributions that may provide the module onnxruntime.
_ONNXRUNTIME_DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml")
#: Module → the distributions that may provide it.
_DISTRIBUTIONS = {"onnxruntime": _ONNXRUNTIME_DISTRIBUTIONS, "torch": ("torch",), "onnx": ("onnx",)}


def reference_versions() -> dict[str, str]:
    """Return the versions of the installed modules among onnxruntime, torch and onnx. Nothing is imported."""
    from importlib import metadata  # takes 20 ms, and few commands need it

    versions = {}
    for name, candidates in _DISTRIBUTIONS.items():
        for candidate in candidates:
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions[name] = metadata.version(candidate)
                break
    return versions


def installed_versions() -> dict[str, str]:
    """Return the versions of onnxruntime, torch and onnx. Raises ToolchainMissing if one of them is not installed."""
    versions = reference_versions()
    for name in _DISTRIBUTIONS:
        if name not in versions:
            raise ToolchainMissing(
                f"verify runs the model with {name}, which is not installed",
                hint="pip install 'trtbuild[verify]'"
                if name == "onnxruntime"
                else "pip install 'trtbuild[torch,verify]'",
            )
    return versions
