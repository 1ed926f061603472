"""Loading a TensorRT library, and listening to what it says."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass, field
from typing import Any

from trtbuild.core.spec import ToolchainName
from trtbuild.errors import EnvironmentFault, ToolchainMissing
from trtbuild.toolchain.table import FLAVOURS

#: Said by every call on a machine without a GPU; never the reason of a failure.
_NOISE = ("CUDA driver version is insufficient", "Thread context has not been set", "CUDA initialization failure")


@dataclass
class Log:
    """What a library said, in order, as (severity, text): ``internal_error``, ``error``, ``warning``."""

    lines: list[tuple[str, str]] = field(default_factory=list)

    def mark(self) -> int:
        return len(self.lines)

    def errors(self, since: int = 0) -> list[str]:
        """What went wrong, without what is always said on a machine without a GPU."""
        return [
            text
            for severity, text in self.lines[since:]
            if severity in ("internal_error", "error") and not any(noise in text for noise in _NOISE)
        ]

    def texts(self) -> tuple[str, ...]:
        """All lines, with their severity."""
        return tuple(f"{severity}: {text}" for severity, text in self.lines)

    def warnings(self) -> list[str]:
        return [text for severity, text in self.lines if severity == "warning"]


def load(toolchain: ToolchainName, version: str | None = None) -> Any:
    """The library's Python module.

    Raises ToolchainMissing where it is not installed or cannot be loaded, EnvironmentFault where it is not `version`.
    """
    flavour = FLAVOURS[toolchain]
    try:
        module = importlib.import_module(flavour.module)
    except (ImportError, OSError) as error:
        raise ToolchainMissing(
            f"{toolchain} cannot be loaded: {error}", hint=f"pip install '{flavour.distribution}'"
        ) from error
    loaded = str(module.__version__)
    if version is not None and loaded != flavour.library_versions.get(version, version):
        raise EnvironmentFault(
            f"the engine is to be built by {toolchain} {version}, but the library that was loaded is {loaded}",
            hint=f"pip install '{flavour.distribution}=={version}'",
        )
    return module


def listener(trt: Any, log: Log) -> Any:
    """An ILogger of library `trt` that writes warnings and errors into `log`. It must outlive what is given it."""
    names = {
        trt.ILogger.INTERNAL_ERROR: "internal_error",
        trt.ILogger.ERROR: "error",
        trt.ILogger.WARNING: "warning",
    }

    class Listener(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            if severity in names:
                log.lines.append((names[severity], text))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Listener()
