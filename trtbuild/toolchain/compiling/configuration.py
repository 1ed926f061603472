"""Builder settings, profiles and target become an IBuilderConfig.

Rules
1. Every field of `BuilderSettings` is applied, whether it is at its default or not: a default of the library may change.
2. TensorRT logs what it does not take and goes on; so every setting is read back, and one that did not hold raises.
3. What a library lacks cannot be set: at its default a setting is as good as applied, otherwise it raises. Before any work
   `trtbuild.toolchain.libraries.table.check_release` has said so of what is known of the release.
4. A timing cache is used as it is handed over; it is in no key, and decides nothing but what is timed again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.errors import ToolchainError
from trtbuild.toolchain.libraries.execution_table import calls_of
from trtbuild.toolchain.libraries.releases import release, unset
from trtbuild.toolchain.libraries.table import FLAVOURS, built_sms

#: Field of BuilderSettings → BuilderFlag.
FLAGS = {
    "tf32": "TF32",
    "sparse_weights": "SPARSE_WEIGHTS",
    "strict_nans": "STRICT_NANS",
    "refit": "REFIT",
    "strip_plan": "STRIP_PLAN",
    "weight_streaming": "WEIGHT_STREAMING",
    "version_compatible": "VERSION_COMPATIBLE",
    "exclude_lean_runtime": "EXCLUDE_LEAN_RUNTIME",
    "distributive_independence": "DISTRIBUTIVE_INDEPENDENCE",
    "direct_io": "DIRECT_IO",
    "require_user_allocation": "REQUIRE_USER_ALLOCATION",
    "monitor_memory": "MONITOR_MEMORY",
}
#: Field of BuilderSettings → attribute of IBuilderConfig. None leaves the library's own choice.
NUMBERS = {
    "optimization_level": "builder_optimization_level",
    "max_aux_streams": "max_aux_streams",
    "l2_limit_for_tiling": "l2_limit_for_tiling",
    "max_num_tactics": "max_num_tactics",
    "avg_timing_iterations": "avg_timing_iterations",
}
#: Field of BuilderSettings → attribute of IBuilderConfig, and the enumeration that its upper-case name is in.
CHOICES = {
    "tiling_optimization_level": ("tiling_optimization_level", "TilingOptimizationLevel"),
    "profiling_verbosity": ("profiling_verbosity", "ProfilingVerbosity"),
}


def configure(trt: Any, builder: Any, network: Any, job: EngineJob) -> Any:
    """The IBuilderConfig of `job` for a parsed `network`. Raises ToolchainError for what the library does not take."""
    config = builder.create_builder_config()
    _settings(trt, config, job)
    _target(trt, config, job)
    _profiles(builder, network, config, job)
    return config


def _settings(trt: Any, config: Any, job: EngineJob) -> None:
    settings = job.settings
    for field, attribute in NUMBERS.items():
        value = getattr(settings, field)
        if value is not None and _has(config, attribute, job, field):
            _attribute(config, attribute, value, f"builder.{field}")
    for field, (attribute, enumeration) in CHOICES.items():
        if not _has(trt, enumeration, job, field):
            continue
        value = getattr(getattr(trt, enumeration), getattr(settings, field).upper())
        _attribute(config, attribute, value, f"builder.{field}")
    # Some flags are taken only after others (EXCLUDE_LEAN_RUNTIME after VERSION_COMPATIBLE): the table is in that order.
    for field, name in FLAGS.items():
        if not _has(trt.BuilderFlag, name, job, field):
            continue
        flag = getattr(trt.BuilderFlag, name)
        wanted = getattr(settings, field)
        if wanted:
            config.set_flag(flag)
        else:
            config.clear_flag(flag)
        if config.get_flag(flag) != wanted:
            raise ToolchainError(f"{job.target.toolchain} does not take builder.{field}: {wanted}")
    if settings.tactic_sources is not None:
        sources = sum(1 << int(getattr(trt.TacticSource, name.upper())) for name in settings.tactic_sources)
        config.set_tactic_sources(sources)
        if config.get_tactic_sources() != sources:
            raise ToolchainError(f"{_name(job)} does not take builder.tactic_sources: {list(settings.tactic_sources)}")
    calls = calls_of(job.target.toolchain, str(trt.__version__))
    if calls is not None and not calls.shared_profiles:
        # Contexts of several threads and streams use one profile, as they do from TensorRT 9 on.
        config.set_preview_feature(trt.PreviewFeature.PROFILE_SHARING_0806, True)
    workspace = settings.workspace
    if workspace is None:
        workspace = FLAVOURS[job.target.toolchain].default_workspace
    if workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace)
        taken = config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE)
        if taken != workspace:
            raise ToolchainError(
                f"{job.target.toolchain} takes {taken} bytes of workspace where {workspace} were asked for",
                hint="make builder.workspace smaller",
            )


def _has(owner: Any, name: str, job: EngineJob, field: str) -> bool:
    """Whether the library has what a setting is about (rule 3)."""
    if hasattr(owner, name):
        return True
    if unset(job.settings, field):
        return False
    raise ToolchainError(f"{_name(job)} has no builder.{field}", hint=f"remove {field}")


def _name(job: EngineJob) -> str:
    return f"{job.target.toolchain} {job.toolchain_version}"


def _attribute(config: Any, attribute: str, value: object, field: str) -> None:
    setattr(config, attribute, value)
    taken = getattr(config, attribute)
    if taken != value:
        raise ToolchainError(f"the toolchain does not take {field}: {value} (it has {taken})")


def _target(trt: Any, config: Any, job: EngineJob) -> None:
    if FLAVOURS[job.target.toolchain].needs_gpu:
        name = release(job.target.toolchain, job.toolchain_version).compatibilities.get(job.target.compatibility)
        level = getattr(trt.HardwareCompatibilityLevel, name or "", None)
        if level is None:
            raise ToolchainError(f"{_name(job)} has no compatibility {job.target.compatibility}")
        _attribute(config, "hardware_compatibility_level", level, "compatibility")
        return
    sms = built_sms(job.target)
    config.num_compute_capabilities = len(sms)
    for index, sm in enumerate(sms):
        config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{sm}"), index)
        if config.get_compute_capability(index) != getattr(trt.ComputeCapability, f"SM{sm}"):
            raise ToolchainError(f"{job.target.toolchain} does not build for SM {sm}")


def _profiles(builder: Any, network: Any, config: Any, job: EngineJob) -> None:
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    if [tensor.name for tensor in inputs] != [f"i{index}" for index in range(len(inputs))]:
        raise ToolchainError(f"the network's inputs are {', '.join(tensor.name for tensor in inputs)}, not i0, i1, …")
    for number, ranges in enumerate(job.profiles):
        if len(ranges) != len(inputs):
            raise ToolchainError(f"profile {number} has {len(ranges)} inputs, the network {len(inputs)}")
        profile = builder.create_optimization_profile()
        for tensor, shape in zip(inputs, ranges, strict=True):
            _range(profile.set_shape, tensor, shape.min, shape.opt, shape.max, number)
            taken = [tuple(each) for each in profile.get_shape(tensor.name)]
            if taken != [shape.min, shape.opt, shape.max]:
                raise ToolchainError(f"the toolchain does not take profile {number} of {tensor.name}: it has {taken}")
            if tensor.is_shape_tensor:
                # Its *values* decide shapes; profiles hold shapes of tensors alone.
                raise ToolchainError(
                    f"the values of input {tensor.name} decide shapes inside the engine",
                    hint="keep the operator that reads a size from a tensor in PyTorch (torch_executed_ops)",
                )
        if config.add_optimization_profile(profile) != number:
            raise ToolchainError(f"the toolchain does not take optimization profile {number}")


def _range(
    setter: Callable[..., None],
    tensor: Any,
    low: tuple[int, ...],
    middle: tuple[int, ...],
    high: tuple[int, ...],
    number: int,
) -> None:
    try:
        setter(tensor.name, low, middle, high)
    except (ValueError, RuntimeError, TypeError) as error:
        raise ToolchainError(
            f"profile {number} of input {tensor.name}: {list(low)} to {list(high)} does not fit "
            f"{list(tensor.shape)}: {error}"
        ) from error
