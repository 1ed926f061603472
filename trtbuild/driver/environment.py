"""What this machine contributes to recipes: versions of installed distributions, never of imported modules.

Reading a distribution's metadata costs a millisecond and needs no GPU; importing torch costs seconds. The workers check
that what they load is what was read here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import metadata

from trtbuild.core.planning import Facts, ToolchainFacts
from trtbuild.core.spec import Model, Target
from trtbuild.driver.workers import ENGINE_ENVIRONMENT
from trtbuild.errors import ToolchainMissing
from trtbuild.toolchain import table
from trtbuild.toolchain.devices import device_sms

#: Whose versions are parts of trace, lower, partition and convert.
TORCH_SIDE = ("torch", "onnx", "onnx-ir", "onnxscript")


def torch_versions() -> dict[str, str] | None:
    """Versions of python and the torch side, or None when one of them is not installed."""
    found = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for name in TORCH_SIDE:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            return None
    return found


def missing_on_torch_side() -> list[str]:
    """Distributions of the torch side that are not installed."""
    installed = {name for name in TORCH_SIDE if _installed(name)}
    return [name for name in TORCH_SIDE if name not in installed]


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def gather(models: Sequence[Model]) -> Facts:
    """The facts for planning `models`. Raises ToolchainMissing where a toolchain is neither pinned nor installed."""
    toolchains: dict[Target, ToolchainFacts] = {}
    for model in models:
        for target in model.targets:
            toolchains[target] = toolchain_facts(target)
    return Facts(table.host_platform(), torch_versions(), toolchains, ENGINE_ENVIRONMENT)


def toolchain_facts(target: Target) -> ToolchainFacts:
    """The exact version (the pin, else what is installed), opset and default workspace of a target's toolchain."""
    version = target.version or table.installed_version(target.toolchain)
    flavour = table.FLAVOURS[target.toolchain]
    if version is None:
        raise ToolchainMissing(
            f"target {target.name!r} needs {target.toolchain}, which is not installed",
            hint=f"pip install '{flavour.distribution}', or pin the target's version to use engines from the cache",
        )
    return ToolchainFacts(version, table.opset(target.toolchain, version), flavour.default_workspace)


def check_targets(models: Mapping[str, Model], wanted: Sequence[tuple[str, Target]]) -> None:
    """Raise before any work when an engine has to be built that no toolchain here can build."""
    devices = device_sms() if wanted else ()
    for model, target in wanted:
        version = table.installed_version(target.toolchain)
        table.check_target(target, models[model].builder, version, devices=devices)
