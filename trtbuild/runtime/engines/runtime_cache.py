"""Kernels that TensorRT-RTX compiled on this GPU, kept in a file so that the next process need not.

    <package>/.runtime/<library>-<version>/<gpu>-sm<sm>-driver<version>.kernels

Rules
1. The file is for one GPU model, driver and library version: another has another file. The library checks once more.
2. It speeds a start up and is nothing else: what is missing, damaged or refused is compiled anew, and never an error. A
   digest at the start tells what was cut off or altered.
3. It holds code for the GPU. So it is read only where no other user could have written it (POSIX: owned by this user or
   root, writable by nobody else), and is no part of the package's digests.
4. Where the package's directory cannot be written, the user's cache directory takes it, under the package's digest.
5. It is written beside and renamed. Of two processes that write at once one wins; both have what was there before.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import stat
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtbuild.regular import open_regular

MAGIC = b"trtbuild.kernels/1\n"

#: The folder in a package; its name begins with a dot: it is not the package's.
FOLDER = ".runtime"


@dataclass(frozen=True)
class Gpu:
    """A GPU as kernels depend on it. `driver` is the CUDA version that the driver takes, such as 13000."""

    name: str
    sm: int
    driver: int


def gpu(ordinal: int) -> Gpu | None:
    """The GPU `ordinal`, asked of the CUDA driver; None where it does not say."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    device, major, minor, version = (ctypes.c_int() for _ in range(4))
    name = ctypes.create_string_buffer(256)
    answers = (
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(device), ordinal),
        driver.cuDeviceGetName(name, len(name), device),
        driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device),  # CUdevice_attribute: compute capability
        driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device),
        driver.cuDriverGetVersion(ctypes.byref(version)),
    )
    if any(answers):
        return None
    return Gpu(name.value.decode(errors="replace"), major.value * 10 + minor.value, version.value)


def places(package: Path, digest: str, library: str, version: str, device: Gpu) -> tuple[Path, ...]:
    """Where the file may be, best first. `digest` is the package's. A user without a home (a container's) has one place."""
    name = f"{_plain(device.name)}-sm{device.sm}-driver{device.driver}.kernels"
    inner = Path(f"{_plain(library)}-{_plain(version)}", name)
    found = [package / FOLDER / inner]
    with contextlib.suppress(RuntimeError):  # Path.home(): neither $HOME nor an entry of the user
        found.append(_user_cache() / "trtbuild" / "runtime" / digest[:32] / inner)
    return tuple(found)


class KernelFile:
    """The file, in the first of `places` where it is or can be."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = tuple(places)

    def read(self) -> bytes | None:
        """What was kept, or None."""
        for path in self._places:
            data = _trusted(path)
            if data is None or not data.startswith(MAGIC):
                continue
            digest, _, content = data[len(MAGIC) :].partition(b"\n")
            if hashlib.sha256(content).hexdigest().encode() == digest:
                return content
        return None

    def write(self, content: bytes) -> Path | None:
        """Keep `content`. The path it went to, or None where no place can be written."""
        data = MAGIC + hashlib.sha256(content).hexdigest().encode() + b"\n" + content
        for path in self._places:
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                _publish(path, data)
                return path
        return None


def _publish(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def _trusted(path: Path) -> bytes | None:
    """The file's bytes where nobody else can have written them."""
    try:
        with open(open_regular(path), "rb") as file:
            status = os.fstat(file.fileno())
            if os.name == "posix" and (
                status.st_uid not in (os.geteuid(), 0) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            ):
                return None
            return file.read()
    except OSError:
        return None


def _user_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.") or "unknown"
