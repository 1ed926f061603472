"""Create an IBuilderConfig from builder settings, profiles and target.

Rules
1. Every field of `BuilderSettings` that is not None is applied, even if it has its default value, because a default of the
   library may change. If `workspace` is None, the toolchain's `default_workspace` is applied, if there is one.
2. If TensorRT refuses a setting, it only logs an error and continues. So every setting is read back. If its value differs
   from the value that was set, an error is raised.
3. A setting that the library lacks is ignored if its value is the default. Otherwise an error is raised. If the release is
   known to lack it, `trtbuild.toolchain.libraries.table.check_release` has raised the error before any work.
"""

from __future__ import annotations

from typing import Any

from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.model.builder_settings import SETTINGS, Attribute, Flag, MemoryPool, Setting, TacticSources
from trtbuild.core.model.spec import ShapeRange
from trtbuild.errors import ToolchainError
from trtbuild.toolchain.libraries.execution_table import calls_of
from trtbuild.toolchain.libraries.releases import has_default, release
from trtbuild.toolchain.libraries.table import FLAVOURS, built_sms


def configure(trt: Any, builder: Any, network: Any, job: EngineJob) -> Any:
    """Create the IBuilderConfig of `job` for its `network`.

    Raises ToolchainError if the library refuses a setting, the target or a profile. Also raises it if the inputs of the
    network are not those of the job, or if the values of an input decide shapes."""
    config = builder.create_builder_config()
    _apply_settings(trt, config, job)
    _apply_target(trt, config, job)
    _add_profiles(builder, network, config, job)
    return config


def _apply_settings(trt: Any, config: Any, job: EngineJob) -> None:
    for name, setting in SETTINGS.items():
        value = getattr(job.settings, name)
        if name == "workspace" and value is None:
            value = FLAVOURS[job.target.toolchain].default_workspace
        if value is None:  # the library's own choice
            continue
        if not _has_setting(trt, config, setting):
            if has_default(job.settings, name):
                continue
            raise ToolchainError(f"{job.toolchain_text} has no builder.{name}", hint=f"remove {name}")
        requested, actual = _apply_setting(trt, config, setting, value)
        if actual != requested and isinstance(setting.config_part, MemoryPool):
            raise ToolchainError(
                f"{job.target.toolchain} uses {actual} bytes of {name}, but {requested} were requested",
                hint=f"make builder.{name} smaller",
            )
        if actual != requested:
            raise ToolchainError(f"{job.toolchain_text} does not take builder.{name}: {value} (it has {actual})")
    execution_calls = calls_of(job.target.toolchain, str(trt.__version__))
    if execution_calls is not None and not execution_calls.shared_profiles:
        # With this feature, the execution contexts of several threads and streams can share a profile.
        config.set_preview_feature(trt.PreviewFeature.PROFILE_SHARING_0806, True)


def _has_setting(trt: Any, config: Any, setting: Setting) -> bool:
    match setting.config_part:
        case Flag(name):
            return hasattr(trt.BuilderFlag, name)
        case Attribute(name, enumeration):
            return hasattr(config, name) and (enumeration is None or hasattr(trt, enumeration))
        case MemoryPool(name):
            return hasattr(trt.MemoryPoolType, name)
        case TacticSources():
            return True


def _apply_setting(trt: Any, config: Any, setting: Setting, value: Any) -> tuple[object, object]:
    """Set a value. Returns the value in TensorRT's form, and the value that `config` has afterwards."""
    match setting.config_part:
        case Flag(name):
            flag = getattr(trt.BuilderFlag, name)
            (config.set_flag if value else config.clear_flag)(flag)
            return value, config.get_flag(flag)
        case Attribute(name, enumeration):
            trt_value = value if enumeration is None else getattr(getattr(trt, enumeration), value.upper())
            setattr(config, name, trt_value)
            return trt_value, getattr(config, name)
        case MemoryPool(name):
            pool = getattr(trt.MemoryPoolType, name)
            config.set_memory_pool_limit(pool, value)
            return value, config.get_memory_pool_limit(pool)
        case TacticSources():
            sources = sum(1 << int(getattr(trt.TacticSource, name.upper())) for name in value)
            config.set_tactic_sources(sources)
            return sources, config.get_tactic_sources()


def _apply_target(trt: Any, config: Any, job: EngineJob) -> None:
    if FLAVOURS[job.target.toolchain].needs_gpu:
        name = release(job.target.toolchain, job.toolchain_version).compatibilities.get(job.target.compatibility)
        level = getattr(trt.HardwareCompatibilityLevel, name or "", None)
        if level is None:
            raise ToolchainError(f"{job.toolchain_text} has no compatibility {job.target.compatibility}")
        config.hardware_compatibility_level = level
        if config.hardware_compatibility_level != level:
            raise ToolchainError(f"{job.toolchain_text} does not take compatibility: {job.target.compatibility}")
        return
    sms = built_sms(job.target)
    config.num_compute_capabilities = len(sms)
    for index, sm in enumerate(sms):
        config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{sm}"), index)
        if config.get_compute_capability(index) != getattr(trt.ComputeCapability, f"SM{sm}"):
            raise ToolchainError(f"{job.target.toolchain} does not build for SM {sm}")


def _add_profiles(builder: Any, network: Any, config: Any, job: EngineJob) -> None:
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    if [tensor.name for tensor in inputs] != [f"i{index}" for index in range(len(inputs))]:
        raise ToolchainError(f"the network's inputs are {', '.join(tensor.name for tensor in inputs)}, not i0, i1, …")
    for number, ranges in enumerate(job.profiles):
        if len(ranges) != len(inputs):
            raise ToolchainError(f"profile {number} has {len(ranges)} inputs, the network {len(inputs)}")
        profile = builder.create_optimization_profile()
        for tensor, shape in zip(inputs, ranges, strict=True):
            _set_range(profile, tensor, shape, number)
            if tensor.is_shape_tensor:
                # The values of this tensor decide shapes. Its profile would need values, and a job has only shapes.
                raise ToolchainError(
                    f"the values of input {tensor.name} decide shapes inside the engine",
                    hint="add the operator that reads a size from a tensor to torch_executed_ops: it stays in PyTorch",
                )
        if config.add_optimization_profile(profile) != number:
            raise ToolchainError(f"the toolchain does not take optimization profile {number}")


def _set_range(profile: Any, tensor: Any, shape: ShapeRange, number: int) -> None:
    try:
        profile.set_shape(tensor.name, shape.min, shape.opt, shape.max)
    except (ValueError, RuntimeError, TypeError) as error:
        raise ToolchainError(
            f"profile {number} of input {tensor.name}: {list(shape.min)} to {list(shape.max)} does not fit "
            f"{list(tensor.shape)}: {error}"
        ) from error
    actual = [tuple(each) for each in profile.get_shape(tensor.name)]
    if actual != [shape.min, shape.opt, shape.max]:
        raise ToolchainError(f"the toolchain does not take profile {number} of {tensor.name}: it has {actual}")
