"""Builder configurations of TensorRT-RTX, and of TensorRT 8.6, which lacks many settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tensorrt_rtx

from tests.core.builder_values import other_value
from tests.toolchain import tensorrt86 as trt
from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.model.builder_settings import SETTINGS, Attribute, BuilderSettings, Flag, MemoryPool
from trtbuild.core.model.spec import ShapeRange, Target
from trtbuild.errors import ToolchainError
from trtbuild.toolchain.compiling.configuration import configure
from trtbuild.toolchain.libraries.releases import lacks_setting

HOPPER = Target("hopper", 90, toolchain="tensorrt")
ROWS = ShapeRange((1, 8), (4, 8), (16, 8))


def _configured(target: Target = HOPPER, **settings: Any) -> trt.FakeConfig:
    """The configuration of TensorRT 8.6 for a job with these settings."""
    job = EngineJob("onnx", (), ((ROWS,),), BuilderSettings(**settings), target, "8.6.0")
    builder = trt.FakeBuilder()
    return configure(trt.MODULE, builder, trt.FakeNetwork([trt.FakeTensor("i0")]), job)  # type: ignore[no-any-return]


def test_defaults_work_with_8_6() -> None:
    config = _configured()
    assert config.flags == {trt.BuilderFlag.TF32}
    assert config.profiling_verbosity == trt.ProfilingVerbosity.DETAILED
    assert config.hardware_compatibility_level == trt.HardwareCompatibilityLevel.NONE
    assert config.profiles[0].shapes == {"i0": ((1, 8), (4, 8), (16, 8))}
    assert config.preview == {trt.PreviewFeature.PROFILE_SHARING_0806}
    # The library's defaults do not change.
    assert config.sources == 0b11111 and config.limits[trt.MemoryPoolType.WORKSPACE] == 1 << 37


def test_settings_reach_the_library() -> None:
    config = _configured(
        replace(HOPPER, compatibility="ampere_plus"),
        tf32=False,
        version_compatible=True,
        exclude_lean_runtime=True,
        optimization_level=5,
        workspace=1 << 20,
        tactic_sources=("cudnn", "jit_convolutions"),
    )
    assert config.flags == {trt.BuilderFlag.VERSION_COMPATIBLE, trt.BuilderFlag.EXCLUDE_LEAN_RUNTIME}
    assert config.hardware_compatibility_level == trt.HardwareCompatibilityLevel.AMPERE_PLUS
    assert (config.builder_optimization_level, config.limits[trt.MemoryPoolType.WORKSPACE]) == (5, 1 << 20)
    assert config.sources == 1 << trt.TacticSource.CUDNN | 1 << trt.TacticSource.JIT_CONVOLUTIONS
    assert _configured(tactic_sources=()).sources == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"strip_plan": True},
        {"strict_nans": True},
        {"max_num_tactics": 3},
        {"tiling_optimization_level": "full"},
        {"l2_limit_for_tiling": 1},
        {"monitor_memory": True},
    ],
)
def test_rejects_a_setting_that_the_library_lacks(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(ToolchainError, match=rf"tensorrt 8\.6\.0 has no builder\.{name}"):
        _configured(**settings)


def test_rejects_a_compatibility_that_the_library_lacks() -> None:
    with pytest.raises(ToolchainError, match="has no compatibility same_compute_capability"):
        _configured(replace(HOPPER, compatibility="same_compute_capability"))


def _rtx_config(**settings: Any) -> Any:
    """A real IBuilderConfig of TensorRT-RTX."""
    builder = tensorrt_rtx.Builder(tensorrt_rtx.Logger(tensorrt_rtx.Logger.ERROR))
    job = EngineJob("onnx", (), (), BuilderSettings(**settings), Target("ada", 89), tensorrt_rtx.__version__)
    return configure(tensorrt_rtx, builder, builder.create_network(0), job)


def _read(config: Any, config_part: Any) -> Any:
    """The value in `config` of the flag, attribute or memory pool that a setting changes."""
    match config_part:
        case Flag(name):
            return config.get_flag(getattr(tensorrt_rtx.BuilderFlag, name))
        case Attribute(name):
            return getattr(config, name)
        case MemoryPool(name):
            return config.get_memory_pool_limit(getattr(tensorrt_rtx.MemoryPoolType, name))


@pytest.mark.parametrize("name", [name for name in SETTINGS if "tensorrt-rtx" not in SETTINGS[name].first_releases])
def test_every_setting_reaches_tensorrt_rtx(name: str) -> None:
    others = {"version_compatible": True} if name == "exclude_lean_runtime" else {}  # the library requires this
    before, after = _rtx_config(**others), _rtx_config(**{**others, name: other_value(name)})
    assert _read(before, SETTINGS[name].config_part) != _read(after, SETTINGS[name].config_part)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_8_6_lacks_names_its_first_release(name: str) -> None:
    match SETTINGS[name].config_part:
        case Flag(member):
            exists = hasattr(trt.BuilderFlag, member)
        case MemoryPool(member):
            exists = hasattr(trt.MemoryPoolType, member)
        case Attribute(member):
            exists = hasattr(trt.FakeConfig, member)
        case _:
            exists = True
    assert exists is not lacks_setting("tensorrt", "8.6", SETTINGS[name])
