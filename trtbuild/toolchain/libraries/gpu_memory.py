"""Ask NVIDIA's management library (NVML) for the free memory of a GPU.

CUDA reports the free memory only in a process with a context on the GPU, which takes hundreds of MB of the GPU's memory.
NVML needs no context. Its library comes with the driver, but a container may lack it.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from trtbuild.toolchain.libraries.devices import pci_bus_id


class _Memory(ctypes.Structure):
    """``nvmlMemory_t``, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def free_gpu_bytes(ordinal: int) -> int | None:
    """Return the free memory of the GPU `ordinal` in bytes, or None if it is not known.

    For a MIG device (a part of a GPU), this is the free memory of the whole GPU.
    """
    nvml, bus_id = _nvml(), pci_bus_id(ordinal)
    if nvml is None or bus_id is None:
        return None
    handle, memory = ctypes.c_void_p(), _Memory()
    if (
        nvml.nvmlDeviceGetHandleByPciBusId_v2(bus_id, ctypes.byref(handle)) != 0
        or nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != 0
    ):
        return None
    return int(memory.free)


@functools.lru_cache(maxsize=1)
def _nvml() -> Any:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        return nvml if nvml.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None
