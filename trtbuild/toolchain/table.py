"""What each TensorRT flavour is and takes, in one table; and the questions that are asked before any work.

Nothing here imports TensorRT: versions come from the installed distributions' metadata, so that `plan` is quick and
works where no toolchain is installed.

Rules
1. A difference between the flavours is a field of `Flavour`, with its source. Code outside this folder asks the table.
2. `check_target` raises before any work, with what is allowed and the next command to type.
3. A default that depends on the machine is written out here (`default_workspace`).
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field

from trtbuild.core.spec import BuilderSettings, Target, ToolchainName
from trtbuild.errors import TargetUnsupported, ToolchainMissing
from trtbuild.toolchain import distributions

#: Ampere, the first architecture that ``ampere_plus`` means.
AMPERE = 80


@dataclass(frozen=True)
class Flavour:
    """One TensorRT flavour. Settings are named as in `trtbuild.core.spec.BuilderSettings`."""

    name: ToolchainName
    #: The Python module, and the distribution whose version names the toolchain.
    module: str
    distribution: str
    #: The SMs that it builds for, or None: those of the GPUs in this machine.
    sms: tuple[int, ...] | None
    #: The ONNX opset that its parser is given, by the first version that takes it (newest first).
    opsets: tuple[tuple[tuple[int, ...], int], ...]
    #: Element types (torch's names) that engines compute and take as they are. A partition holds no other.
    dtypes: tuple[str, ...]
    #: What each compatibility policy is, where it can be built.
    compatibilities: tuple[str, ...]
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
        # `tensorrt_rtx.ComputeCapability`, 1.7.1. None of them needs a GPU to build for (FACTS).
        sms=(75, 80, 86, 89, 120, 121),
        # What torch 2.13 exports by default; 20 has Gelu as one operator (FACTS: parses).
        opsets=(((1,), 20),),
        # `tensorrt_rtx.DataType`. The parser makes float32 of float64 in silence (measured, 1.7.1), and int8 means
        # quantized: neither is the model. uint8 is taken only to be cast, which the parser sees to.
        dtypes=("float32", "float16", "bfloat16", "int32", "int64", "bool", "uint8"),
        # RTX ignores the hardware compatibility level. One plan is for all devices of its compute capability, and one
        # plan may hold several: ampere_plus is a plan for every SM from 80 on (measured: no larger than for one).
        compatibilities=("exact", "same_compute_capability", "ampere_plus"),
        # 1.7.1: "Unable to load library: libnvinfer_lean.so.1" unless the lean runtime is excluded.
        refused={},
        # 1.7.1 without a driver: MyelinCheckException, graph_jit.cpp:278.
        need_driver=("refit", "strip_plan"),
        # Without a GPU the library takes 64 GiB, with one its memory; it is part of the plan's bytes (measured).
        default_workspace=64 << 30,
        # "Timing cache operations are no-ops in TensorRT-RTX" (deprecated in 1.2).
        timing_cache=False,
        # FACTS: byte-identical across runs and processes. It times no kernels when it builds.
        reproducible=True,
    ),
    "tensorrt": Flavour(
        name="tensorrt",
        module="tensorrt",
        distribution="tensorrt",
        sms=None,
        # FACTS: 8.6 wants opset 17. 10.0 and later take 20 (TensorRT 10.0 release notes: ONNX opset 20).
        opsets=(((10,), 20), ((8,), 17)),
        dtypes=("float32", "float16", "bfloat16", "int32", "int64", "bool", "uint8"),
        compatibilities=("exact", "same_compute_capability", "ampere_plus"),
        timing_cache=True,
        # FACTS: the distribution 8.6.0 has bindings that call themselves 8.6.1.
        library_versions={"8.6.0": "8.6.1"},
    ),
}


def opset(toolchain: ToolchainName, version: str) -> int:
    """The ONNX opset that models are converted to for a toolchain version."""
    numbers = _numbers(version)
    for first, number in FLAVOURS[toolchain].opsets:
        if numbers >= first:
            return number
    return FLAVOURS[toolchain].opsets[-1][1]


def installed_version(toolchain: ToolchainName) -> str | None:
    """The version of the installed distribution, or None. Reads metadata alone; nothing is imported."""
    return distributions.installed_version(FLAVOURS[toolchain].distribution)


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
    (`trtbuild.toolchain.devices.device_sms`), and `host` is its platform. Raises ToolchainMissing where something must
    be installed, TargetUnsupported where it is installed and cannot.
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
    _check_sm(target, flavour, devices)
    _check_settings(target, settings, flavour, bool(devices))


def _check_sm(target: Target, flavour: Flavour, devices: tuple[int, ...]) -> None:
    said = f"target {target.name!r}"
    if flavour.sms is None:
        if target.sm not in devices:
            here = ", ".join(f"SM {sm}" for sm in sorted(set(devices))) or "none"
            raise TargetUnsupported(
                f"{said} is for SM {target.sm}; {flavour.name} builds on a GPU of that SM, and here is {here}",
                hint=f"build on a machine with an SM {target.sm} GPU, or pull the engine from a shared cache",
            )
    elif target.sm not in flavour.sms:
        allowed = ", ".join(map(str, flavour.sms))
        raise TargetUnsupported(
            f"{said} is for SM {target.sm}, and {flavour.name} builds for SM {allowed} only",
            hint=f"write `toolchain: tensorrt` for this target, and build on a machine with an SM {target.sm} GPU",
        )
    if target.compatibility not in flavour.compatibilities:
        raise TargetUnsupported(
            f"{said}: {flavour.name} has no compatibility {target.compatibility}",
            hint=f"it has {', '.join(flavour.compatibilities)}",
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


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
