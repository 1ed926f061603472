"""The GPUs of this machine, asked of the CUDA driver itself: no torch, no TensorRT, no subprocess."""

from __future__ import annotations

import ctypes
import functools
import sys

# CUDA driver API, cuda.h: CUdevice_attribute.
_COMPUTE_CAPABILITY_MAJOR = 75
_COMPUTE_CAPABILITY_MINOR = 76


@functools.lru_cache(maxsize=1)
def device_sms() -> tuple[int, ...]:
    """The SM (ten times the compute capability) of each GPU, by ordinal; empty where there is no driver or no GPU."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return ()
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    found = []
    for ordinal in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        if (
            driver.cuDeviceGet(ctypes.byref(device), ordinal) == 0
            and driver.cuDeviceGetAttribute(ctypes.byref(major), _COMPUTE_CAPABILITY_MAJOR, device) == 0
            and driver.cuDeviceGetAttribute(ctypes.byref(minor), _COMPUTE_CAPABILITY_MINOR, device) == 0
        ):
            found.append(major.value * 10 + minor.value)
    return tuple(found)
