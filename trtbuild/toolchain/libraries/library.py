"""Load a TensorRT library, and capture its log."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import re
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from trtbuild.core.model.spec import ToolchainName
from trtbuild.errors import EnvironmentFault, ToolchainMissing
from trtbuild.toolchain.libraries.mapped import check_mapped_versions
from trtbuild.toolchain.libraries.table import FLAVOURS

#: Parts of logged errors that are never the reason for a failure. On a machine without a GPU, TensorRT logs the first
#: three in every call. It logs the other two around the text of a refused node.
_IGNORED_ERRORS = (
    "CUDA driver version is insufficient",
    "Thread context has not been set",
    "CUDA initialization failure",
    "--- Begin node ---",
    "--- End node ---",
)
#: A part of a warning that TensorRT logs for every model with int64 inputs or outputs.
_IGNORED_WARNING = "has Int64 binding"
#: The parser logs such a line before it parses a node, and ``n1 [Relu] outputs: …`` after it.
_PARSING = re.compile(r"(?:Static check for parsing|Parsing) node: (.*) \[\w+\]$")


@dataclass(eq=False)
class Log:
    """The log lines of a library, in order."""

    #: (severity, text). A severity is ``internal_error``, ``error`` or ``warning``.
    lines: list[tuple[str, str]] = field(default_factory=list)
    #: The name of the ONNX node that the parser is parsing. Empty between two nodes.
    parsed_node: str = ""

    def line_count(self) -> int:
        """Return the number of lines so far. `errors` can skip them later."""
        return len(self.lines)

    def errors(self, skipped_lines: int = 0) -> list[str]:
        """Return the errors after the first `skipped_lines` lines, without those of `_IGNORED_ERRORS`."""
        return [
            text
            for severity, text in self.lines[skipped_lines:]
            if severity in ("internal_error", "error") and not any(noise in text for noise in _IGNORED_ERRORS)
        ]

    def texts(self) -> tuple[str, ...]:
        return tuple(f"{severity}: {text}" for severity, text in self.lines)

    def warnings(self) -> list[str]:
        return [text for severity, text in self.lines if severity == "warning" and _IGNORED_WARNING not in text]


def load(toolchain: ToolchainName, version: str | None = None) -> Any:
    """Import the Python module of a toolchain.

    Raises ToolchainMissing if it is not installed or cannot be loaded. Raises EnvironmentFault if the module, or a library
    that it loads, does not have `version`.
    """
    flavour = FLAVOURS[toolchain]
    try:
        module = importlib.import_module(flavour.module)
    except (ImportError, OSError) as error:
        raise ToolchainMissing(
            f"{toolchain} cannot be loaded: {error}", hint=f"pip install '{flavour.distribution}'"
        ) from error
    loaded = str(module.__version__)
    if version is not None and loaded not in (version, flavour.library_versions.get(version)):
        raise EnvironmentFault(
            f"the engine must be built by {toolchain} {version}, but the loaded library is {loaded}",
            hint=f"pip install '{flavour.distribution}=={version}'",
        )
    if version is not None:
        check_mapped_versions(flavour, version)
    return module


def keep_kernels_loaded(trt: Any, logger: Any, ordinal: int) -> None:
    """Keep TensorRT's kernels for GPU `ordinal` loaded until this process ends, by an unused Builder.

    TensorRT loads its kernels with the first Builder of a process, which takes 6 to 8 seconds (8.6.0, H200). It unloads
    them with the last Builder.
    """
    if (trt.__name__, ordinal) not in _UNUSED_BUILDERS:
        _UNUSED_BUILDERS[trt.__name__, ordinal] = trt.Builder(logger)
        atexit.register(_UNUSED_BUILDERS.clear)  # the builders must be freed before the library is unloaded


#: Library and GPU → an unused Builder.
_UNUSED_BUILDERS: dict[tuple[str, int], Any] = {}


@contextlib.contextmanager
def capture_log(trt: Any) -> Iterator[tuple[Any, Log]]:
    """Yield the ILogger of library `trt`, and a log. The log gets the lines that this thread's calls write in the block.

    All calls for one library share one logger, because TensorRT uses only the first logger of a process. Lines from threads
    without an open log, such as TensorRT's own threads, go into every open log.
    """
    log, thread = Log(), threading.get_ident()
    entry = (thread, log)
    _OPEN_LOGS.append(entry)
    try:
        yield _shared_logger(trt), log
    finally:
        _OPEN_LOGS.remove(entry)


#: The open logs: (thread, log). No lock is needed, because `list` operations are atomic.
_OPEN_LOGS: list[tuple[int, Log]] = []

#: The last 64 errors on threads without an open log: (thread, text). Calls that are very frequent do not open a log.
_LAST_ERRORS: deque[tuple[int, str]] = deque(maxlen=64)


def last_errors() -> list[str]:
    """Return this thread's entries of `_LAST_ERRORS` since the last call of this function, the oldest first."""
    thread = threading.get_ident()
    own_entries = [entry for entry in list(_LAST_ERRORS) if entry[0] == thread]
    for entry in own_entries:
        with contextlib.suppress(ValueError):  # the full deque may have dropped the entry in the meantime
            _LAST_ERRORS.remove(entry)
    return [text for _, text in own_entries if not any(noise in text for noise in _IGNORED_ERRORS)]


#: Held while a logger is created. Otherwise two threads could create two loggers, and the one that TensorRT uses could be
#: freed.
_LOGGER_LOCK = threading.Lock()


def _shared_logger(trt: Any) -> Any:
    with _LOGGER_LOCK:
        return _create_logger(trt)


@functools.cache
def _create_logger(trt: Any) -> Any:
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
                thread, entries = threading.get_ident(), list(_OPEN_LOGS)
                own_logs = [log for owner, log in entries if owner == thread]
                if not own_logs and names[severity] != "warning":
                    _LAST_ERRORS.append((thread, text))
                for log in own_logs or [log for _, log in entries]:
                    log.lines.append((names[severity], text))
            elif (begun := _PARSING.match(text)) or "] outputs: [" in text:
                for owner, log in list(_OPEN_LOGS):
                    if owner == threading.get_ident():
                        log.parsed_node = begun[1] if begun else ""

    return Listener()
