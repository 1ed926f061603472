"""File systems of a fixed size in memory, for tests whose user may mount them."""

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
def mounted(place: Path, options: str) -> Iterator[Path]:
    """A tmpfs with these options at `place`. Skips the test if this user is not allowed to mount file systems."""
    place.mkdir()
    _mount(place, 0, options)
    try:
        yield place
    finally:
        _LIBC.umount2(os.fsencode(place), _DETACH)


def make_read_only(place: Path, options: str) -> None:
    _mount(place, _REMOUNT | _READ_ONLY, options)


def _mount(place: Path, flags: int, options: str) -> None:
    if _LIBC.mount(b"none", os.fsencode(place), b"tmpfs", flags, options.encode()):
        number = ctypes.get_errno()
        if number == errno.EPERM:
            pytest.skip("only root may mount")
        raise OSError(number, os.strerror(number))
