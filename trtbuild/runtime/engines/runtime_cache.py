"""Store TensorRT-RTX's runtime cache (the kernels that it compiled on this GPU) in a file for the next process.

    <package>/.runtime/<library>-<version>/<gpu>-sm<sm>-driver<version>.kernels

Rules
1. Each combination of GPU model, driver and library version has its own file.
2. The file only makes the start of a process faster. If it is missing, damaged or refused, kernels are compiled again,
   without an error. A digest at the start of the file detects damage.
3. The file contains code for the GPU, and no digest in the package covers the file. So it is not read if a user other than
   this one and root could have written it. This is checked on POSIX only.
4. If the package's directory is not writable, the file is in the user's cache directory, in a folder named after the
   package's digest.
5. If two processes write at once, the file of the last one stays. The file is always whole, because it is written under a
   temporary name and then renamed.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtbuild.atomic import replace_file
from trtbuild.regular import open_regular

MAGIC = b"trtbuild.kernels/1\n"

# CUDA driver API, cuda.h: CUdevice_attribute.
_COMPUTE_CAPABILITY_MAJOR = 75
_COMPUTE_CAPABILITY_MINOR = 76

#: The folder in a package's directory. The dot shows that the folder is not part of the package.
KERNEL_FOLDER = ".runtime"


@dataclass(frozen=True)
class Gpu:
    """The properties of a GPU that kernels depend on. `driver` is the driver's CUDA version, such as 13000."""

    name: str
    sm: int
    driver: int


def find_gpu(ordinal: int) -> Gpu | None:
    """Find the GPU `ordinal` through the CUDA driver. Returns None if that fails."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    device, major, minor, version = (ctypes.c_int() for _ in range(4))
    name = ctypes.create_string_buffer(256)
    error_codes = (
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(device), ordinal),
        driver.cuDeviceGetName(name, len(name), device),
        driver.cuDeviceGetAttribute(ctypes.byref(major), _COMPUTE_CAPABILITY_MAJOR, device),
        driver.cuDeviceGetAttribute(ctypes.byref(minor), _COMPUTE_CAPABILITY_MINOR, device),
        driver.cuDriverGetVersion(ctypes.byref(version)),
    )
    if any(error_codes):
        return None
    return Gpu(name.value.decode(errors="replace"), major.value * 10 + minor.value, version.value)


def kernel_file_paths(package: Path, digest: str, library: str, version: str, gpu: Gpu) -> tuple[Path, ...]:
    """Return the possible paths of the kernel file, best first. `digest` is the package's digest. A user without a home
    directory and a cache directory (in a container) has only one path."""
    name = f"{_file_name(gpu.name)}-sm{gpu.sm}-driver{gpu.driver}.kernels"
    inner = Path(f"{_file_name(library)}-{_file_name(version)}", name)
    paths = [package / KERNEL_FOLDER / inner]
    with contextlib.suppress(RuntimeError):  # from Path.home(), if the user has no home directory
        paths.append(_user_cache() / "trtbuild" / "runtime" / digest[:32] / inner)
    return tuple(paths)


class KernelFile:
    """The kernel file, at the first usable path of `paths`."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)

    def read(self) -> bytes | None:
        """Return the kernels, or None if there is no valid file."""
        for path in self._paths:
            data = _read_trusted(path)
            if data is None or not data.startswith(MAGIC):
                continue
            digest, _, content = data[len(MAGIC) :].partition(b"\n")
            if hashlib.sha256(content).hexdigest().encode() == digest:
                return content
        return None

    def write(self, content: bytes) -> Path | None:
        """Write the kernels. Returns the path, or None if no path is writable."""
        data = MAGIC + hashlib.sha256(content).hexdigest().encode() + b"\n" + content
        for path in self._paths:
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                # durable: kernels take minutes to compile. mode: the next process runs these kernels, so no other user
                # may write the file.
                replace_file(path, data, durable=True, mode=0o600)
                return path
        return None


def _read_trusted(path: Path) -> bytes | None:
    """Return the bytes of a file, or None if it cannot be read, or another user could have written it (rule 3)."""
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


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.") or "unknown"
