"""TensorRT's builder settings, such as the optimization level. `BuilderSettings` has a field for each setting.

The manifest's fields and their checks, docs/manifest.md, the builder's configuration, the check of the toolchain's release,
trtexec's arguments and the engine's key all follow from the facts in these fields (`Setting`). docs/architecture.md
describes how to add a setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, TypeVar

_T = TypeVar("_T")

#: TensorRT's type for most counts is int32.
INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class Flag:
    """A `BuilderFlag`, which is set or cleared."""

    name: str


@dataclass(frozen=True)
class Attribute:
    """An attribute of `IBuilderConfig`.

    With an `enumeration`, the setting's value is the name of a member of that type, in lower case."""

    name: str
    enumeration: str | None = None


@dataclass(frozen=True)
class MemoryPool:
    """The limit of a `MemoryPoolType`, in bytes."""

    name: str


@dataclass(frozen=True)
class TacticSources:
    """The `TacticSource`s of `IBuilderConfig.set_tactic_sources`."""


@dataclass(frozen=True)
class Setting:
    """The facts about a builder setting, except its name, type and default."""

    #: The text about the setting in docs/manifest.md and in editors.
    description: str
    #: The part of TensorRT's builder configuration that gets the value. If the value is None, TensorRT chooses.
    config_part: Flag | Attribute | MemoryPool | TacticSources
    #: trtexec's argument, or None if trtexec has no such argument. ``{}`` stands for the value, and ``{number}`` for the
    #: position of the value among the allowed values.
    trtexec: str | None
    #: Whether trtexec gets the argument even if the setting has its default.
    trtexec_at_default: bool
    #: The smallest and the largest number that is allowed. A size in bytes has no largest number.
    minimum: int
    maximum: int
    #: Whether the number is a size in bytes, which a manifest may write as "1GiB".
    in_bytes: bool
    #: Toolchain → the first release that has the setting, or None if no release has it. A toolchain that is not in the
    #: mapping has the setting in all releases. If the sources name only a major version, the mapping has its first release.
    #: Sources: https://docs.nvidia.com/deeplearning/tensorrt (migration guide 8.x to 10.x, release notes 10.8), and the
    #: bindings of 8.6.1 and TensorRT-RTX 1.7.1.
    first_releases: Mapping[str, str | None]


def setting(
    default: _T,
    description: str,
    config_part: Flag | Attribute | MemoryPool | TacticSources,
    trtexec: str | None,
    *,
    trtexec_at_default: bool = False,
    minimum: int = 0,
    maximum: int = INT32_MAX,
    in_bytes: bool = False,
    first_releases: Mapping[str, str | None] | None = None,
) -> _T:
    """Define a field of `BuilderSettings`, from its default and the fields of its `Setting`."""
    facts = Setting(
        description, config_part, trtexec, trtexec_at_default, minimum, maximum, in_bytes, first_releases or {}
    )
    result: _T = field(default=default, metadata={"setting": facts})
    return result


@dataclass(frozen=True)
class BuilderSettings:
    """The settings of TensorRT's ``IBuilderConfig`` that a manifest can set, with all defaults filled in.

    The names follow `IBuilderConfig` and `BuilderFlag`. Settings are applied in the order of the fields.
    """

    optimization_level: int = setting(
        3,
        "How long TensorRT looks for faster kernels.",
        Attribute("builder_optimization_level"),
        "--builderOptimizationLevel={}",
        trtexec_at_default=True,
        maximum=5,
    )
    workspace: int | None = setting(
        None,
        "The maximum scratch memory; null allows all memory of the device.",
        MemoryPool("WORKSPACE"),
        "--memPoolSize=workspace:{}",
        in_bytes=True,
    )
    max_aux_streams: int | None = setting(
        None,
        "The maximum number of auxiliary streams; null lets TensorRT choose.",
        Attribute("max_aux_streams"),
        "--maxAuxStreams={}",
    )
    tiling_optimization_level: Literal["none", "fast", "moderate", "full"] = setting(
        "none",
        "How much time TensorRT spends on the search for tilings.",
        Attribute("tiling_optimization_level", "TilingOptimizationLevel"),
        "--tilingOptimizationLevel={number}",
        first_releases={"tensorrt": "10.8"},
    )
    l2_limit_for_tiling: int | None = setting(
        None,
        "The L2 cache that tiling may use; null lets TensorRT choose.",
        Attribute("l2_limit_for_tiling"),
        "--l2LimitForTiling={}",
        in_bytes=True,
        first_releases={"tensorrt": "10.8"},
    )
    max_num_tactics: int | None = setting(
        None,
        "The maximum number of tactics to time; null lets TensorRT choose.",
        Attribute("max_num_tactics"),
        "--maxTactics={}",
        minimum=1,
        first_releases={"tensorrt": "10.0"},
    )
    avg_timing_iterations: int = setting(
        1,
        "How often a tactic is timed.",
        Attribute("avg_timing_iterations"),
        "--avgTiming={}",
        trtexec_at_default=True,
        minimum=1,
    )
    tf32: bool = setting(True, "Whether float32 products may use TF32.", Flag("TF32"), "--noTF32")
    sparse_weights: bool = setting(
        False, "Whether to look for 2:4 sparse weights.", Flag("SPARSE_WEIGHTS"), "--sparsity=enable"
    )
    strict_nans: bool = setting(
        False,
        "Whether NaN is handled as IEEE 754 says.",
        Flag("STRICT_NANS"),
        None,
        first_releases={"tensorrt": "10.0"},
    )
    refit: bool = setting(False, "Whether the engine's weights can be replaced.", Flag("REFIT"), "--refit")
    strip_plan: bool = setting(
        False,
        "Whether weights are left out of the plan.",
        Flag("STRIP_PLAN"),
        "--stripWeights",
        first_releases={"tensorrt": "10.0"},
    )
    weight_streaming: bool = setting(
        False,
        "Whether weights may be streamed from the host.",
        Flag("WEIGHT_STREAMING"),
        "--allowWeightStreaming",
        first_releases={"tensorrt": "10.0"},
    )
    version_compatible: bool = setting(
        False,
        "Whether later TensorRT versions, and the lean and dispatch runtimes, may run the engine.",
        Flag("VERSION_COMPATIBLE"),
        "--versionCompatible",
    )
    # This field follows `version_compatible`, because TensorRT accepts this flag only after VERSION_COMPATIBLE.
    exclude_lean_runtime: bool = setting(
        False,
        "Whether a version-compatible plan leaves the lean runtime out. "
        "`trtbuild.load` then runs the plan only with TensorRT or the lean runtime of the version that built it. Another "
        "program can run it with a later version, if it loads that lean runtime (`IRuntime.load_runtime`).",
        Flag("EXCLUDE_LEAN_RUNTIME"),
        "--excludeLeanRuntime",
    )
    distributive_independence: bool = setting(
        False,
        "Whether TensorRT computes all slices along an axis such as the batch with identical operations.",
        Flag("DISTRIBUTIVE_INDEPENDENCE"),
        None,
        first_releases={"tensorrt": "10.0"},
    )
    direct_io: bool = setting(
        False, "Whether inputs and outputs are never reformatted.", Flag("DIRECT_IO"), "--directIO"
    )
    require_user_allocation: bool = setting(
        False,
        "Whether the caller provides all device memory.",
        Flag("REQUIRE_USER_ALLOCATION"),
        None,
        first_releases={"tensorrt": "10.0"},
    )
    monitor_memory: bool = setting(
        False,
        "Whether TensorRT logs its memory use.",
        Flag("MONITOR_MEMORY"),
        "--monitorMemory",
        first_releases={"tensorrt": "10.8"},
    )
    profiling_verbosity: Literal["layer_names_only", "detailed", "none"] = setting(
        "detailed",
        "How much the engine reports about its layers.",
        Attribute("profiling_verbosity", "ProfilingVerbosity"),
        "--profilingVerbosity={}",
        trtexec_at_default=True,
    )
    #: In alphabetical order.
    tactic_sources: tuple[str, ...] | None = setting(
        None,
        "Libraries whose kernels `tensorrt` may use; [] forbids all, and null lets TensorRT choose.",
        TacticSources(),
        "--tacticSources={}",
        first_releases={"tensorrt-rtx": None},
    )


#: Name of a setting → its facts.
SETTINGS: Mapping[str, Setting] = {entry.name: entry.metadata["setting"] for entry in fields(BuilderSettings)}

#: The settings that are in every engine's key. All others are in a key only if they do not have their defaults, so that a
#: new setting does not change the keys of old engines. Never add a name here.
SETTINGS_IN_EVERY_KEY = frozenset(
    (
        "optimization_level", "workspace", "max_aux_streams", "tiling_optimization_level", "l2_limit_for_tiling",
        "max_num_tactics", "avg_timing_iterations", "tf32", "sparse_weights", "strict_nans", "refit", "strip_plan",
        "weight_streaming", "version_compatible", "exclude_lean_runtime", "distributive_independence", "direct_io",
        "require_user_allocation", "monitor_memory", "profiling_verbosity",
    )
)  # fmt: skip
