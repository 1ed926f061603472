"""The device memory that an execution context of each engine needs for activations.

TensorRT reports it only for an engine that is loaded on a GPU.
"""

from __future__ import annotations

from pathlib import Path

from trtbuild.driver.inspection.documents import DeviceMemory
from trtbuild.errors import TrtbuildError


def device_memory(path: Path) -> DeviceMemory:
    """Return the memory that the engines for this machine's first GPU need, or the reason why it is not known."""
    from trtbuild.driver.packages.machine import library_for, this_machine
    from trtbuild.runtime.packages.choice import choose_target
    from trtbuild.runtime.packages.package import open_package
    from trtbuild.toolchain.libraries import devices
    from trtbuild.toolchain.running.execution import load_library

    sms = devices.device_sms()
    if not sms:
        return _unknown_memory("unknown without a GPU")
    try:
        package = open_package(path)
        target = choose_target(package.index, this_machine(sms[0]))
        device = devices.use_gpu_with_sm(sms[0])
        if device is None:
            return _unknown_memory("the GPU cannot be used")
        files = package.read(target.engines.values())
        library = load_library(library_for(target))
        bytes_by_partition = {}
        for partition, plan in target.engines.items():
            engine = library.load_engine(files[plan])
            bytes_by_partition[partition] = [engine.memory_bytes(profile) for profile in range(engine.profile_count)]
    except TrtbuildError as error:
        return _unknown_memory(error.text)
    return DeviceMemory(target=target.name, contexts=bytes_by_partition, because=None, device=device.name)


def _unknown_memory(because: str) -> DeviceMemory:
    return DeviceMemory(target=None, contexts={}, because=because)
