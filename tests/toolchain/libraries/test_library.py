"""The kernels of a TensorRT library stay loaded between builds, and all threads of a process share one logger."""

from __future__ import annotations

import atexit
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from trtbuild.toolchain.libraries import library


def test_keeps_one_builder_for_each_gpu_until_exit(monkeypatch: Any) -> None:
    loggers: list[object] = []  # the logger of each new builder
    at_exit: list[Any] = []
    kept_builders: dict[tuple[str, int], Any] = {}

    def builder(logger: object) -> object:
        loggers.append(logger)
        return object()

    trt = SimpleNamespace(__name__="tensorrt", Builder=builder)
    monkeypatch.setattr(library, "_UNUSED_BUILDERS", kept_builders)
    monkeypatch.setattr(atexit, "register", at_exit.append)
    for ordinal in (0, 0, 1, 0):
        library.keep_kernels_loaded(trt, "logger", ordinal)
    assert loggers == ["logger", "logger"]
    assert list(kept_builders) == [("tensorrt", 0), ("tensorrt", 1)]
    for call in at_exit:
        call()
    assert not kept_builders


def test_threads_share_one_logger() -> None:
    class Logger:
        INTERNAL_ERROR, ERROR, WARNING = range(3)

        def __init__(self) -> None:
            time.sleep(0.2)  # time for the other thread to ask for the logger

    class Library:
        ILogger = Logger

    def logger_of_thread(_: int) -> object:
        with library.capture_log(Library) as (logger, _log):
            return logger

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(logger_of_thread, range(2))
    assert first is second
