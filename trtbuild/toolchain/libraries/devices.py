"""Find the GPUs of this machine through the CUDA driver, without torch, TensorRT or a subprocess."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# CUDA driver API, cuda.h: CUdevice_attribute.
_COMPUTE_CAPABILITY_MAJOR = 75
_COMPUTE_CAPABILITY_MINOR = 76


@dataclass(frozen=True)
class Device:
    """A GPU of this machine. `sm` is ten times its compute capability.

    `driver` is the version of NVIDIA's driver. If it is not known, `driver` is the CUDA version that the driver supports
    (``CUDA 13.0``)."""

    ordinal: int
    sm: int
    name: str
    memory_bytes: int
    driver: str


@functools.lru_cache(maxsize=1)
def device_sms() -> tuple[int, ...]:
    """Return the SM of each GPU, in the order of their ordinals.

    The result is empty without a driver. It is also empty if one GPU cannot be queried, because the later GPUs would have
    wrong ordinals."""
    driver = _driver()
    if driver is None:
        return ()
    count = ctypes.c_int(0)
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    sms = []
    for ordinal in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        if (
            driver.cuDeviceGet(ctypes.byref(device), ordinal) != 0
            or driver.cuDeviceGetAttribute(ctypes.byref(major), _COMPUTE_CAPABILITY_MAJOR, device) != 0
            or driver.cuDeviceGetAttribute(ctypes.byref(minor), _COMPUTE_CAPABILITY_MINOR, device) != 0
        ):
            return ()
        sms.append(major.value * 10 + minor.value)
    return tuple(sms)


def use_gpu_with_sm(sm: int) -> Device | None:
    """Make the first GPU with this SM the current device of this thread, on which TensorRT builds. Returns None if this
    fails, or if there is no such GPU."""
    return use_gpu(device_sms().index(sm)) if sm in device_sms() else None


def use_gpu(ordinal: int) -> Device | None:
    """Make the GPU with this ordinal the current device of this thread. Returns None if this fails."""
    driver, gpu = _driver(), describe_gpu(ordinal)
    if driver is None or gpu is None:
        return None
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if (
        driver.cuDeviceGet(ctypes.byref(device), ordinal) != 0
        # The primary context, because TensorRT uses it.
        or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) != 0
        or driver.cuCtxSetCurrent(context) != 0
    ):
        return None
    return gpu


def describe_gpu(ordinal: int) -> Device | None:
    """Return the GPU with this ordinal. Creates no CUDA context.

    Returns None if there is no such GPU, or if the driver does not describe it."""
    driver = _driver()
    if driver is None or ordinal >= len(device_sms()):
        return None
    device = ctypes.c_int()
    name, size = ctypes.create_string_buffer(256), ctypes.c_size_t()
    if (
        driver.cuDeviceGet(ctypes.byref(device), ordinal) != 0
        or driver.cuDeviceGetName(name, len(name), device) != 0
        or driver.cuDeviceTotalMem_v2(ctypes.byref(size), device) != 0
    ):
        return None
    sm = device_sms()[ordinal]
    return Device(ordinal, sm, name.value.decode(errors="replace"), size.value, _driver_version(driver))


def pci_bus_id(ordinal: int) -> bytes | None:
    """Return the PCI address of the GPU with this ordinal, such as ``0000:3b:00.0``, or None if there is no such GPU."""
    driver = _driver()
    if driver is None:
        return None
    device, address = ctypes.c_int(), ctypes.create_string_buffer(64)
    if (
        driver.cuDeviceGet(ctypes.byref(device), ordinal) != 0
        or driver.cuDeviceGetPCIBusId(address, len(address), device) != 0
    ):
        return None
    return address.value


@functools.lru_cache(maxsize=1)
def _driver() -> Any:
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    return driver if driver.cuInit(0) == 0 else None


def _driver_version(driver: Any) -> str:
    with contextlib.suppress(OSError):
        return Path("/sys/module/nvidia/version").read_text().strip()
    number = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(number))
    return f"CUDA {number.value // 1000}.{number.value % 1000 // 10}"
