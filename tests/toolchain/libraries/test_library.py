"""An unused builder keeps the kernels of a library loaded between the builds of a process."""

from __future__ import annotations

import atexit
from types import SimpleNamespace
from typing import Any

from trtbuild.toolchain.libraries import library


def test_keeps_one_builder_for_each_gpu_until_exit(monkeypatch: Any) -> None:
    loggers: list[object] = []  # of each new builder
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
