"""File systems in memory with a fixed size. A test that uses them is skipped if its user may not mount them."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

_LIBC = ctypes.CDLL(None, use_errno=True)
_READ_ONLY, _REMOUNT = 1, 32  # MS_RDONLY and MS_REMOUNT of mount(2)
_DETACH = 2  # MNT_DETACH of umount2(2)


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A tmpfs with these options at `folder`. Skips the test if this user is not allowed to mount file systems."""
    folder.mkdir()
    _mount(folder, 0, options)
    try:
        yield folder
    finally:
        _LIBC.umount2(os.fsencode(folder), _DETACH)


def make_read_only(folder: Path, options: str) -> None:
    _mount(folder, _REMOUNT | _READ_ONLY, options)


def _mount(folder: Path, flags: int, options: str) -> None:
    if _LIBC.mount(b"none", os.fsencode(folder), b"tmpfs", flags, options.encode()):
        number = ctypes.get_errno()
        if number == errno.EPERM:
            pytest.skip("only root may mount")
        raise OSError(number, os.strerror(number))
