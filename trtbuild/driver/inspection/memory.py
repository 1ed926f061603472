"""How much device memory engines need: TensorRT tells it of an engine that a GPU has taken, and of no plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtbuild.errors import TrtbuildError

Document = dict[str, Any]


def device_memory(path: Path) -> Document:
    """For the target that runs here: partition → bytes of activations that one context needs, per profile.

    `because` says why nothing is known: there is no GPU, or none that the package is for.
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
        library = load_library(target.toolchain, version)  # type: ignore[arg-type]  # one of them, or it would not fit
        contexts = {}
        for partition, plan in target.engines.items():
            engine = library.load_engine(files[plan])
            contexts[partition] = [engine.memory_bytes(profile) for profile in range(engine.profile_count)]
    except TrtbuildError as error:
        return {**nothing, "because": error.text}
    return {"target": target.name, "contexts": contexts, "because": None, "device": device.name}
