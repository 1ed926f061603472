"""The device memory that engines need. TensorRT reports it for an engine that is loaded on a GPU, not for a plan file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtbuild.errors import TrtbuildError

Document = dict[str, Any]


def device_memory(path: Path) -> Document:
    """Return, for the target that runs here, the bytes of activations of one context: partition → one number per profile.

    `because` is the reason if there is no result: this machine has no GPU, or no GPU that the package supports.
    """
    from trtbuild.driver.packages.loading import here
    from trtbuild.runtime.packages.choice import choose_target
    from trtbuild.runtime.packages.package import open_package
    from trtbuild.toolchain.libraries import devices
    from trtbuild.toolchain.running.execution import load_library

    nothing: Document = {"target": None, "contexts": {}, "because": None}
    sms = devices.device_sms()
    if not sms:
        return {**nothing, "because": "unknown without a GPU"}
    try:
        package = open_package(path)
        target = choose_target(package.index, here(sms[0]))
        device = devices.use_device(sms[0])
        if device is None:
            return {**nothing, "because": "the GPU cannot be used"}
        files = package.read(target.engines.values())
        version = None if target.runs_on_later else target.version
        library = load_library(target.toolchain, version)  # type: ignore[arg-type]  # `choose_target` found it
        contexts = {}
        for partition, plan in target.engines.items():
            engine = library.load_engine(files[plan])
            contexts[partition] = [engine.memory_bytes(profile) for profile in range(engine.profile_count)]
    except TrtbuildError as error:
        return {**nothing, "because": error.text}
    return {"target": target.name, "contexts": contexts, "because": None, "device": device.name}
