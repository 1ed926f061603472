"""What each TensorRT flavour is, in one table; and the questions that are asked before any work. What its releases
differ in stands in `trtbuild.toolchain.libraries.releases`.

Nothing here imports TensorRT: versions come from the installed distributions' metadata, so that `plan` is quick and
works where no toolchain is installed.

Rules
1. A difference between the flavours is a field of `Flavour`, one between releases a field of `Release`, with its source.
   Code outside this folder asks here.
2. `check_target` raises before any work, with what is allowed and the next command to type.
3. A default that depends on the machine is written out here (`default_workspace`).
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field

from trtbuild.core.model.spec import BuilderSettings, Precision, Target, ToolchainName
from trtbuild.core.model.stand_in import StandIn
from trtbuild.errors import TargetUnsupported, ToolchainMissing
from trtbuild.toolchain.libraries import distributions
from trtbuild.toolchain.libraries.releases import numbers_of, oldest, release, unset

#: Ampere, the first architecture that ``ampere_plus`` means.
AMPERE = 80


@dataclass(frozen=True)
class Flavour:
    """One TensorRT flavour. Settings are named as in `trtbuild.core.model.spec.BuilderSettings`."""

    name: ToolchainName
    #: The Python module, and the distribution whose version names the toolchain.
    module: str
    distribution: str
    #: What its libraries' file names begin with, on Linux: the one that builds, and the ONNX parser.
    library: str = field(kw_only=True)
    parser_library: str = field(kw_only=True)
    #: Distributions that are the same library by another name.
    also: tuple[str, ...] = field(kw_only=True, default=())
    #: The SMs that it builds for, or None: those of the GPUs in this machine.
    sms: tuple[int, ...] | None
    #: Settings that it cannot build with → why.
    refused: Mapping[str, str] = field(default_factory=dict)
    #: Settings that need a CUDA driver in the machine that builds.
    need_driver: tuple[str, ...] = ()
    #: The workspace, in bytes, that ``workspace: None`` means; None is the library's own default.
    default_workspace: int | None = None
    #: Whether it keeps timings of kernels that make a later build faster.
    timing_cache: bool = False
    #: Whether equal jobs give equal bytes, so that building once more shows whether an engine is what it is said to be.
    reproducible: bool = False
    #: Metadata version → the version that the loaded library says, where they differ.
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
        # `tensorrt_rtx.ComputeCapability`, 1.7.1. None of them needs a GPU to build for.
        sms=(75, 80, 86, 89, 120, 121),
        # 1.7.1: "Unable to load library: libnvinfer_lean.so.1" unless the lean runtime is excluded.
        refused={},
        # 1.7.1 without a driver: MyelinCheckException, graph_jit.cpp:278.
        need_driver=("refit", "strip_plan"),
        # Without a GPU the library takes 64 GiB, with one its memory; it is part of the plan's bytes (measured).
        default_workspace=64 << 30,
        # "Timing cache operations are no-ops in TensorRT-RTX" (deprecated in 1.2).
        timing_cache=False,
        # It times no kernels when it builds. Nearly always: of many builds on a loaded machine, a plan was seen to differ,
        # so who compares bytes builds more than once (`trtbuild.driver.cache.rebuilding`), and no key rests on it.
        reproducible=True,
    ),
    "tensorrt": Flavour(
        name="tensorrt",
        module="tensorrt",
        distribution="tensorrt",
        library="libnvinfer.so",
        parser_library="libnvonnxparser.so",
        # https://pypi.org/project/tensorrt-cu12: by CUDA's major version; `tensorrt` requires one of them.
        also=("tensorrt-cu13", "tensorrt-cu12", "tensorrt-cu11"),
        sms=None,
        timing_cache=True,
        # The distribution 8.6.0 has bindings that call themselves 8.6.1.
        library_versions={"8.6.0": "8.6.1"},
    ),
}


def opset(toolchain: ToolchainName, version: str) -> int:
    """The ONNX opset that models are converted to for a toolchain version."""
    return release(toolchain, version).opset


def installed_version(toolchain: ToolchainName) -> str | None:
    """The version of the installed distribution, or None. Reads metadata alone; nothing is imported."""
    flavour = FLAVOURS[toolchain]
    found = (distributions.installed_version(name) for name in (flavour.distribution, *flavour.also))
    return next((version for version in found if version is not None), None)


def narrows_int64(toolchain: ToolchainName, version: str) -> bool:
    """Whether engines of `version` compute int64 values in 32 bits."""
    return release(toolchain, version).narrows_int64


def stand_in(toolchain: ToolchainName, version: str) -> StandIn | None:
    """What is asked in place of the parser of a toolchain that needs a GPU: TensorRT-RTX's, as it is installed here, after
    what is known of `version`. None where there is none."""
    installed = installed_version("tensorrt-rtx")
    if installed is None or not FLAVOURS[toolchain].needs_gpu:
        return None
    found = release(toolchain, version)
    return StandIn("tensorrt-rtx", installed, found.dtypes, found.narrows_int64, found.refuses)


def host_platform() -> str:
    """This machine as ``<os>-<cpu>``: linux-x86_64, linux-aarch64, windows-x86_64."""
    cpu = platform.machine().lower()
    return f"{platform.system().lower()}-{'x86_64' if cpu in ('amd64', 'x86_64') else cpu}"


def built_sms(target: Target) -> tuple[int, ...]:
    """The SMs that a TensorRT-RTX plan for `target` holds, ascending."""
    sms = FLAVOURS[target.toolchain].sms
    if sms is not None and target.compatibility == "ampere_plus":
        return tuple(sm for sm in sms if sm >= AMPERE)
    return (target.sm,)


def check_target(
    target: Target,
    settings: BuilderSettings,
    version: str | None,
    *,
    devices: tuple[int, ...] = (),
    host: str | None = None,
) -> None:
    """Whether this machine can build for `target` with `settings`. Cheap; call it before any work.

    `version` is that of the installed toolchain, None where there is none. `devices` are the SMs of this machine's GPUs
    (`trtbuild.toolchain.libraries.devices.device_sms`), and `host` is its platform. Raises ToolchainMissing where
    something must be installed, TargetUnsupported where it is installed and cannot.
    """
    flavour = FLAVOURS[target.toolchain]
    said = f"target {target.name!r}"
    if version is None:
        pin = f"=={target.version}" if target.version else ""
        raise ToolchainMissing(
            f"{said} needs {flavour.name}, which is not installed", hint=f"pip install '{flavour.distribution}{pin}'"
        )
    if target.version is not None and target.version != version:
        raise ToolchainMissing(
            f"{said} is pinned to {flavour.name} {target.version}; {version} is installed",
            hint=f"pip install '{flavour.distribution}=={target.version}', or change the pin",
        )
    host = host or host_platform()
    if target.platform != host:
        raise TargetUnsupported(
            f"{said} is for {target.platform}; {flavour.name} builds for the platform that it runs on, here {host}",
            hint=f"build it on {target.platform}, or set platform: {host}",
        )
    check_release(target, settings, version)
    _check_sm(target, flavour, devices)
    _check_settings(target, settings, flavour, bool(devices))


def check_release(target: Target, settings: BuilderSettings, version: str, precision: Precision = "float32") -> None:
    """Whether `version` of a target's toolchain has what is asked of it; it need not be installed. Raises
    TargetUnsupported."""
    said, flavour = f"target {target.name!r}", FLAVOURS[target.toolchain]
    if numbers_of(version)[:2] < oldest(target.toolchain):
        first = ".".join(map(str, oldest(target.toolchain)))
        raise TargetUnsupported(
            f"{said}: trtbuild builds with {flavour.name} {first} and later, not {version}",
            hint=f"pip install '{flavour.distribution}>={first}', or change the pin",
        )
    found, name = release(target.toolchain, version), f"{flavour.name} {version}"
    if target.compatibility not in found.compatibilities:
        raise TargetUnsupported(
            f"{said}: {name} has no compatibility {target.compatibility}",
            hint=f"it has {', '.join(found.compatibilities)}",
        )
    for setting, since in found.lacks.items():
        if not unset(settings, setting):
            raise TargetUnsupported(
                f"{said}: {name} has no builder.{setting}: {flavour.name} {since} and later have"
                if since != "no release"
                else f"{said}: {flavour.name} has no builder.{setting}",
                hint=f"remove {setting}",
            )
    for source in settings.tactic_sources or ():
        if source not in found.tactic_sources:
            raise TargetUnsupported(
                f"{said}: {name} has no tactic source {source}", hint=f"it has {', '.join(found.tactic_sources)}"
            )
    if precision not in found.dtypes:
        has = " or ".join(kind for kind in ("float32", "float16", "bfloat16") if kind in found.dtypes)
        raise TargetUnsupported(f"{said}: {name} does not compute in {precision}", hint=f"set precision: {has}")


def _check_sm(target: Target, flavour: Flavour, devices: tuple[int, ...]) -> None:
    said = f"target {target.name!r}"
    if flavour.sms is None:
        if target.sm not in devices:
            here = ", ".join(f"SM {sm}" for sm in sorted(set(devices))) or "none"
            raise TargetUnsupported(
                f"{said} is for SM {target.sm}; {flavour.name} builds on a GPU of that SM, and here is {here}",
                hint=f"build on a machine with an SM {target.sm} GPU, or pull the engine from a shared cache; "
                "`trtbuild build --until convert` does here what needs no GPU",
            )
    elif target.sm not in flavour.sms:
        allowed = ", ".join(map(str, flavour.sms))
        raise TargetUnsupported(
            f"{said} is for SM {target.sm}, and {flavour.name} builds for SM {allowed} only",
            hint=f"write `toolchain: tensorrt` for this target, and build on a machine with an SM {target.sm} GPU",
        )
    if target.compatibility == "ampere_plus" and target.sm < AMPERE:
        raise TargetUnsupported(
            f"{said}: compatibility ampere_plus is for SM {AMPERE} and later, not SM {target.sm}",
            hint="set compatibility: exact",
        )


def _check_settings(target: Target, settings: BuilderSettings, flavour: Flavour, driver: bool) -> None:
    said = f"target {target.name!r}"
    default = BuilderSettings()
    for name, reason in flavour.refused.items():
        if getattr(settings, name) != getattr(default, name):
            raise TargetUnsupported(f"{said}: {flavour.name} has no builder.{name}: {reason}", hint=f"remove {name}")
    for name in flavour.need_driver:
        if getattr(settings, name) != getattr(default, name) and not driver:
            raise TargetUnsupported(
                f"{said}: builder.{name} needs a CUDA driver where {flavour.name} builds, and here is none",
                hint=f"build on a machine with a GPU, or remove {name}",
            )
    if settings.exclude_lean_runtime and not settings.version_compatible:
        # IBuilderConfig::setFlag refuses it ("can only be set if kVERSION_COMPATIBLE is set").
        raise TargetUnsupported(
            f"{said}: builder.exclude_lean_runtime means nothing without version_compatible",
            hint="set version_compatible: true too",
        )
    if settings.version_compatible and not settings.exclude_lean_runtime and flavour.name == "tensorrt-rtx":
        raise TargetUnsupported(
            f"{said}: {flavour.name} comes without the lean runtime that version_compatible puts into the engine",
            hint="set exclude_lean_runtime: true too",
        )
