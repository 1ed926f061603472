"""The device memory that engines need. TensorRT reports it for an engine that is loaded on a GPU, not for a plan file."""

from __future__ import annotations

from pathlib import Path

from trtbuild.driver.inspection.documents import DeviceMemory
from trtbuild.errors import TrtbuildError


def device_memory(path: Path) -> DeviceMemory:
    """Return the device memory of the target that runs here.

    `because` is the reason if there is no result: this machine has no GPU, or no GPU that the package supports.
    """
    from trtbuild.driver.packages.machine import this_machine
    from trtbuild.runtime.packages.choice import choose_target
    from trtbuild.runtime.packages.package import open_package
    from trtbuild.toolchain.libraries import devices
    from trtbuild.toolchain.running.execution import load_library

    sms = devices.device_sms()
    if not sms:
        return _unknown("unknown without a GPU")
    try:
        package = open_package(path)
        target = choose_target(package.index, this_machine(sms[0]))
        device = devices.use_device(sms[0])
        if device is None:
            return _unknown("the GPU cannot be used")
        files = package.read(target.engines.values())
        version = None if target.runs_on_later_versions else target.version
        library = load_library(target.toolchain, version)  # type: ignore[arg-type]  # `choose_target` has checked it
        contexts = {}
        for partition, plan in target.engines.items():
            engine = library.load_engine(files[plan])
            contexts[partition] = [engine.memory_bytes(profile) for profile in range(engine.profile_count)]
    except TrtbuildError as error:
        return _unknown(error.text)
    return DeviceMemory(target=target.name, contexts=contexts, because=None, device=device.name)


def _unknown(because: str) -> DeviceMemory:
    return DeviceMemory(target=None, contexts={}, because=because)
