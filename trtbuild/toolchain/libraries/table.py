"""The table of TensorRT flavours, and the checks of a target before any work.

`trtbuild.toolchain.libraries.releases` has the differences between the releases of a flavour.

This module does not import TensorRT, so `trtbuild plan` is quick and works without a toolchain.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trtbuild.core.model.builder_settings import SETTINGS, BuilderSettings
from trtbuild.core.model.spec import Precision, Target, ToolchainName
from trtbuild.core.model.stand_in import StandInParser
from trtbuild.errors import TargetUnsupported, ToolchainMissing
from trtbuild.toolchain.libraries import distributions
from trtbuild.toolchain.libraries.releases import has_default, lacks_setting, oldest_release, release, version_numbers

#: The lowest SM of Ampere, the first architecture of ``ampere_plus``.
AMPERE_SM = 80


@dataclass(frozen=True)
class Flavour:
    """One TensorRT flavour. Settings have the names of the fields of `BuilderSettings`."""

    name: ToolchainName
    module: str
    #: The distribution whose version is the version of the toolchain.
    distribution: str
    #: The prefixes of file names on Linux: of the library, of its ONNX parser, and of the lean runtime, if there is one.
    library: str = field(kw_only=True)
    parser_library: str = field(kw_only=True)
    lean_library: str | None = field(kw_only=True, default=None)
    #: Other distributions with the same library and version.
    other_distributions: tuple[str, ...] = field(kw_only=True, default=())
    #: The SMs for which the flavour builds. None means the SMs of this machine's GPUs.
    sms: tuple[int, ...] | None
    #: Settings that need a CUDA driver during the build.
    settings_needing_driver: tuple[str, ...] = ()
    #: The workspace in bytes if the setting `workspace` is None, or None for the library's own default.
    default_workspace: int | None = None
    #: Whether the library can keep kernel timings, which make a later build faster.
    has_timing_cache: bool = False
    #: Whether equal jobs normally give plans with equal bytes, so that a second build can verify an engine.
    reproducible: bool = False
    #: Version of the distribution → version that its bindings report, if the two differ.
    library_versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def needs_gpu(self) -> bool:
        return self.sms is None


FLAVOURS: Mapping[ToolchainName, Flavour] = {
    "tensorrt-rtx": Flavour(
        name="tensorrt-rtx",
        module="tensorrt_rtx",
        distribution="tensorrt-rtx",
        library="libtensorrt_rtx.so",
        parser_library="libtensorrt_onnxparser_rtx.so",
        # The members of `tensorrt_rtx.ComputeCapability` in 1.7.1. The library builds for all of them without a GPU.
        sms=(75, 80, 86, 89, 120, 121),
        # Without a driver, 1.7.1 raises MyelinCheckException (graph_jit.cpp:278).
        settings_needing_driver=("refit", "strip_plan"),
        # A fixed value, because the library's default depends on the machine: 64 GiB without a GPU, otherwise the GPU's
        # memory. The workspace changes the plan's bytes (measured).
        default_workspace=64 << 30,
        # "Timing cache operations are no-ops in TensorRT-RTX" (deprecated in 1.2).
        has_timing_cache=False,
        # The library does not time kernels during a build. But on a busy machine, one of many plans differed. So a
        # comparison of bytes builds more than once (`trtbuild.driver.cache.rebuilding`).
        reproducible=True,
    ),
    "tensorrt": Flavour(
        name="tensorrt",
        module="tensorrt",
        distribution="tensorrt",
        library="libnvinfer.so",
        parser_library="libnvonnxparser.so",
        lean_library="libnvinfer_lean.so",
        # One for each major version of CUDA. `tensorrt` requires one of them (https://pypi.org/project/tensorrt-cu12).
        other_distributions=("tensorrt-cu13", "tensorrt-cu12", "tensorrt-cu11"),
        sms=None,
        has_timing_cache=True,
        library_versions={"8.6.0": "8.6.1"},
    ),
}


def opset(toolchain: ToolchainName, version: str) -> int:
    return release(toolchain, version).opset


def installed_version(toolchain: ToolchainName) -> str | None:
    """Return the installed version of a toolchain, or None. Does not import the library."""
    flavour = FLAVOURS[toolchain]
    versions = (distributions.installed_version(name) for name in (flavour.distribution, *flavour.other_distributions))
    return next((version for version in versions if version is not None), None)


def narrows_int64(toolchain: ToolchainName, version: str) -> bool:
    return release(toolchain, version).narrows_int64


def stand_in(toolchain: ToolchainName, version: str) -> StandInParser | None:
    """Return the stand-in that replaces a toolchain's parser on machines without a GPU.

    It is the parser of the installed TensorRT-RTX, with the known limits of `version`. Returns None if TensorRT-RTX is not
    installed, or if the toolchain does not need a GPU."""
    installed = installed_version("tensorrt-rtx")
    if installed is None or not FLAVOURS[toolchain].needs_gpu:
        return None
    properties = release(toolchain, version)
    return StandInParser(
        "tensorrt-rtx", installed, properties.dtypes, properties.narrows_int64, properties.refused_operators
    )


def host_platform() -> str:
    """Return this machine's platform, such as ``linux-x86_64`` or ``linux-aarch64``."""
    cpu = platform.machine().lower()
    return f"{platform.system().lower()}-{'x86_64' if cpu in ('amd64', 'x86_64') else cpu}"


def built_sms(target: Target) -> tuple[int, ...]:
    """Return the SMs of a plan for `target`, in ascending order."""
    sms = FLAVOURS[target.toolchain].sms
    if sms is not None and target.compatibility == "ampere_plus":
        return tuple(sm for sm in sms if sm >= AMPERE_SM)
    return (target.sm,)


def check_target(
    target: Target,
    settings: BuilderSettings,
    version: str | None,
    *,
    devices: tuple[int, ...] = (),
    host: str | None = None,
) -> None:
    """Check quickly, before any work, that this machine can build for `target` with `settings`.

    `version` is the version of the installed toolchain, if there is one. `devices` are the SMs of this machine's GPUs, and
    `host` is this machine's platform. Raises ToolchainMissing if the toolchain or its pinned version is not installed.
    Raises TargetUnsupported if the toolchain cannot build for the target, or not with these settings.
    """
    flavour = FLAVOURS[target.toolchain]
    label = f"target {target.name!r}"
    if version is None:
        pin = f"=={target.version}" if target.version else ""
        raise ToolchainMissing(
            f"{label} needs {flavour.name}, which is not installed", hint=f"pip install '{flavour.distribution}{pin}'"
        )
    if target.version is not None and target.version != version:
        raise ToolchainMissing(
            f"{label} is pinned to {flavour.name} {target.version}; {version} is installed",
            hint=f"pip install '{flavour.distribution}=={target.version}', or change the pin",
        )
    host = host or host_platform()
    if target.platform != host:
        raise TargetUnsupported(
            f"{label} is for {target.platform}; {flavour.name} builds only for its own platform, here {host}",
            hint=f"build it on {target.platform}, or set platform: {host}",
        )
    check_release(target, settings, version)
    _check_sm(target, flavour, devices)
    _check_settings(target, settings, flavour, bool(devices))


def check_release(
    target: Target, settings: BuilderSettings, version: str, precisions: Sequence[Precision] = ()
) -> None:
    """Check that `version` of a target's toolchain, installed or not, supports the target, the settings and the precisions.
    Raises TargetUnsupported."""
    label, flavour = f"target {target.name!r}", FLAVOURS[target.toolchain]
    if version_numbers(version)[:2] < oldest_release(target.toolchain):
        first = ".".join(map(str, oldest_release(target.toolchain)))
        raise TargetUnsupported(
            f"{label}: trtbuild builds with {flavour.name} {first} and later, not {version}",
            hint=f"pip install '{flavour.distribution}>={first}', or change the pin",
        )
    properties, name = release(target.toolchain, version), f"{flavour.name} {version}"
    if target.compatibility not in properties.compatibilities:
        raise TargetUnsupported(
            f"{label}: {name} has no compatibility {target.compatibility}",
            hint=f"it has {', '.join(properties.compatibilities)}",
        )
    for setting_name, setting in SETTINGS.items():
        if lacks_setting(target.toolchain, version, setting) and not has_default(settings, setting_name):
            since = setting.first_releases[target.toolchain]
            raise TargetUnsupported(
                f"{label}: {name} has no builder.{setting_name}: {flavour.name} {since} and later have it"
                if since is not None
                else f"{label}: {flavour.name} has no builder.{setting_name}",
                hint=f"remove {setting_name}",
            )
    for source in settings.tactic_sources or ():
        if source not in properties.tactic_sources:
            raise TargetUnsupported(
                f"{label}: {name} has no tactic source {source}", hint=f"it has {', '.join(properties.tactic_sources)}"
            )
    for precision in precisions:
        if precision not in properties.dtypes:
            allowed = " or ".join(kind for kind in ("float32", "float16", "bfloat16") if kind in properties.dtypes)
            raise TargetUnsupported(
                f"{label}: {name} does not compute in {precision}", hint=f"set precision: {allowed}"
            )


def _check_sm(target: Target, flavour: Flavour, devices: tuple[int, ...]) -> None:
    label = f"target {target.name!r}"
    if flavour.sms is None:
        if target.sm not in devices:
            here = ", ".join(f"SM {sm}" for sm in sorted(set(devices))) or "no GPU"
            raise TargetUnsupported(
                f"{label} is for SM {target.sm}; {flavour.name} builds on a GPU of that SM, and this machine has {here}",
                hint=f"build on a machine with an SM {target.sm} GPU, or pull the engine from a shared cache; "
                "`trtbuild build --until convert` runs the steps that need no GPU",
            )
    elif target.sm not in flavour.sms:
        allowed = ", ".join(map(str, flavour.sms))
        raise TargetUnsupported(
            f"{label} is for SM {target.sm}, and {flavour.name} builds for SM {allowed} only",
            hint=f"write `toolchain: tensorrt` for this target, and build on a machine with an SM {target.sm} GPU",
        )
    if target.compatibility == "ampere_plus" and target.sm < AMPERE_SM:
        raise TargetUnsupported(
            f"{label}: compatibility ampere_plus is for SM {AMPERE_SM} and later, not SM {target.sm}",
            hint="set compatibility: exact",
        )


def _check_settings(target: Target, settings: BuilderSettings, flavour: Flavour, has_driver: bool) -> None:
    label = f"target {target.name!r}"
    for name in flavour.settings_needing_driver:
        if not has_default(settings, name) and not has_driver:
            raise TargetUnsupported(
                f"{label}: builder.{name} needs a CUDA driver on the build machine, and this machine has no driver",
                hint=f"build on a machine with a GPU, or remove {name}",
            )
    if settings.exclude_lean_runtime and not settings.version_compatible:
        # IBuilderConfig::setFlag: "can only be set if kVERSION_COMPATIBLE is set".
        raise TargetUnsupported(
            f"{label}: builder.exclude_lean_runtime has no effect without version_compatible",
            hint="set version_compatible: true too",
        )
    if settings.version_compatible and not settings.exclude_lean_runtime and flavour.name == "tensorrt-rtx":
        # The error of 1.7.1: "Unable to load library: libnvinfer_lean.so.1".
        raise TargetUnsupported(
            f"{label}: {flavour.name} comes without the lean runtime that version_compatible puts into the engine",
            hint="set exclude_lean_runtime: true too",
        )
