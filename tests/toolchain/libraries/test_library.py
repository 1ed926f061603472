"""The libraries that stay loaded between the builds of a process."""

from __future__ import annotations

import atexit
from types import SimpleNamespace
from typing import Any

from trtbuild.toolchain.libraries import library


def test_one_builder_for_each_gpu_is_kept_until_exit(monkeypatch: Any) -> None:
    made: list[object] = []
    at_exit: list[Any] = []
    kept: dict[tuple[str, int], Any] = {}

    def builder(logger: object) -> object:
        made.append(logger)
        return object()

    trt = SimpleNamespace(__name__="tensorrt", Builder=builder)
    monkeypatch.setattr(library, "_RESIDENT", kept)
    monkeypatch.setattr(atexit, "register", at_exit.append)
    for ordinal in (0, 0, 1, 0):
        library.stay_loaded(trt, "logger", ordinal)
    assert made == ["logger", "logger"]
    assert list(kept) == [("tensorrt", 0), ("tensorrt", 1)]
    for call in at_exit:
        call()
    assert not kept
