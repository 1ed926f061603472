"""Timings of kernels, kept from one build to the next: a speed-up that identifies nothing.

Rules
1. A cache is for one toolchain version and one GPU model and driver: they are in its file's name. TensorRT checks the
   device as well, and takes no cache of another one.
2. It is in no key. What is read here is what was written here, by its digest; anything else is taken as none, so that a
   damaged file costs time and nothing more.
3. Builds beside one another may write at once: what is there is read again and combined, under a lock of the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trtbuild.regular import read_regular

#: Where they lie, below a project's own state.
FOLDER = "timing"

_HEAD = b"trtbuild.timing/1\n"
_DIGEST_SIZE = hashlib.sha256().digest_size


def path_of(folder: Path, toolchain: str, version: str, device: str, driver: str) -> Path:
    """The file for a toolchain and a GPU."""
    name = f"{toolchain}-{version}-{device}-driver-{driver}"
    return folder / f"{re.sub(r'[^A-Za-z0-9.]+', '-', name)}.cache"


def read(path: Path) -> bytes:
    """The cache at `path`; empty where there is none that can be used."""
    try:
        data = read_regular(path)
    except OSError:
        return b""
    head, digest, body = data[: len(_HEAD)], data[len(_HEAD) :][:_DIGEST_SIZE], data[len(_HEAD) + _DIGEST_SIZE :]
    return body if head == _HEAD and hashlib.sha256(body).digest() == digest else b""


def attach(config: Any, path: Path) -> Any:
    """Let a build with `config` use the cache at `path`, and return TensorRT's object, which has to outlive the build."""
    cache = config.create_timing_cache(read(path)) or config.create_timing_cache(b"")
    if cache is None or not config.set_timing_cache(cache, False):
        cache = config.create_timing_cache(b"")  # of another device, whatever its name says
        config.set_timing_cache(cache, False)
    return cache


def keep(config: Any, path: Path) -> None:
    """Write the timings of a build that is done, with those that another build has written meanwhile. What cannot be
    written is not kept."""
    cache = config.get_timing_cache()
    if cache is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            other = read(path)
            theirs = config.create_timing_cache(other) if other else None
            if theirs is not None:
                cache.combine(theirs, False)
            _write(path, bytes(memoryview(cache.serialize())))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path.with_suffix(".lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(path: Path, body: bytes) -> None:
    descriptor, fresh = tempfile.mkstemp(dir=path.parent, prefix=".fresh-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_HEAD + hashlib.sha256(body).digest() + body)
        Path(fresh).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(fresh).unlink()
        raise
