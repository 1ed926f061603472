"""What this machine contributes to recipes: versions of installed distributions, never of imported modules.

Reading a distribution's metadata costs a millisecond and needs no GPU; importing torch costs seconds. The workers check
that what they load is what was read here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from trtbuild.core.planning import Facts, ToolchainFacts
from trtbuild.core.spec import Model, Target
from trtbuild.driver.blame import place_of_target
from trtbuild.driver.workers import ENGINE_ENVIRONMENT
from trtbuild.errors import EnvironmentFault, ToolchainMissing
from trtbuild.toolchain import table
from trtbuild.toolchain.devices import device_sms
from trtbuild.toolchain.distributions import installed_version

#: Whose versions are parts of trace, lower, partition and convert.
TORCH_SIDE = ("torch", "onnx", "onnx-ir", "onnxscript")


def torch_versions() -> dict[str, str] | None:
    """Versions of python and the torch side, or None when one of them is not installed."""
    found = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for name in TORCH_SIDE:
        version = installed_version(name)
        if version is None:
            return None
        found[name] = version
    return found


def missing_on_torch_side() -> list[str]:
    """Distributions of the torch side that are not installed."""
    return [name for name in TORCH_SIDE if installed_version(name) is None]


def gather(models: Sequence[Model]) -> Facts:
    """The facts for planning `models`. Raises ToolchainMissing where a toolchain is neither pinned nor installed."""
    toolchains: dict[Target, ToolchainFacts] = {}
    for model in models:
        for target in model.targets:
            if target in toolchains:
                continue
            try:
                toolchains[target] = toolchain_facts(target)
            except EnvironmentFault as error:
                place_of_target(error, model, target)
                raise
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
        try:
            table.check_target(target, models[model].builder, version, devices=devices)
        except EnvironmentFault as error:
            place_of_target(error, models[model], target)
            raise
