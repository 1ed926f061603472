"""The versions of the installed distributions, from their metadata. The distributions are not imported."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trtbuild.toolchain.libraries.distributions import installed_version

#: The distributions that trtbuild uses for models and for toolchains.
PARTS = ("torch", "onnx", "onnx-ir", "onnxscript", "numpy", "tensorrt-rtx", "tensorrt", "safetensors")


@dataclass(frozen=True, kw_only=True)
class Versions:
    """The versions of trtbuild, of Python, and of `PARTS`; None for a distribution that is not installed."""

    schema: Literal["trtbuild.version/1"] = "trtbuild.version/1"
    ok: bool = True
    trtbuild: str | None
    python: str
    platform: str
    parts: Mapping[str, str | None]


def installed_versions() -> Versions:
    return Versions(
        trtbuild=installed_version("trtbuild"),
        python=platform.python_version(),
        platform=f"{platform.system().lower()}-{platform.machine().lower()}",
        parts={name: installed_version(name) for name in PARTS},
    )
