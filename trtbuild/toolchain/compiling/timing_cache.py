"""Store the timings of kernels for later builds. They only save time, and are not in any key.

Rules
1. A cache is for one toolchain version, GPU model and driver, which its file name contains. TensorRT also refuses the cache
   of another device.
2. A file contains the digest of its timings. A damaged file counts as missing, so it costs only time.
3. Several builds may write at the same time. So a build takes a lock, reads the file again, and combines the timings.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from pathlib import Path
from typing import Any

from trtbuild.atomic import lock_beside, replace_file
from trtbuild.regular import read_regular

_HEADER = b"trtbuild.timing/1\n"
_DIGEST_SIZE = hashlib.sha256().digest_size


def cache_path(folder: Path, toolchain: str, version: str, device: str, driver: str) -> Path:
    name = f"{toolchain}-{version}-{device}-driver-{driver}"
    return folder / f"{re.sub(r'[^A-Za-z0-9.]+', '-', name)}.cache"


def read_cache(path: Path) -> bytes:
    """Return the timings in the file `path`, or empty bytes if the file is missing or damaged."""
    try:
        data = read_regular(path)
    except OSError:
        return b""
    head, digest, body = data[: len(_HEADER)], data[len(_HEADER) :][:_DIGEST_SIZE], data[len(_HEADER) + _DIGEST_SIZE :]
    return body if head == _HEADER and hashlib.sha256(body).digest() == digest else b""


def attach_cache(config: Any, path: Path) -> Any:
    """Make a build with `config` use the cache at `path`. Returns TensorRT's object, which must outlive the build."""
    cache = config.create_timing_cache(read_cache(path)) or config.create_timing_cache(b"")
    if cache is None or not config.set_timing_cache(cache, False):
        # TensorRT has refused the timings: they are for another device, in spite of the file's name.
        cache = config.create_timing_cache(b"")
        config.set_timing_cache(cache, False)
    return cache


def save_cache(config: Any, path: Path) -> None:
    """Write the timings of a finished build (rule 3). If the file cannot be written, they are lost."""
    cache = config.get_timing_cache()
    if cache is None:
        return
    with contextlib.suppress(OSError), lock_beside(path):
        stored = read_cache(path)
        stored_cache = config.create_timing_cache(stored) if stored else None
        if stored_cache is not None:
            cache.combine(stored_cache, False)
        body = bytes(memoryview(cache.serialize()))
        replace_file(path, _HEADER + hashlib.sha256(body).digest() + body, mode=0o600)
