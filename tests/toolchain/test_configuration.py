"""A configuration of TensorRT 8.6, whose library lacks much of what settings are about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.model.spec import BuilderSettings, ShapeRange, Target
from trtbuild.errors import ToolchainError
from trtbuild.toolchain.compiling.configuration import configure

from . import tensorrt86 as trt

HOPPER = Target("hopper", 90, toolchain="tensorrt")
ROWS = ShapeRange((1, 8), (4, 8), (16, 8))


def _configured(target: Target = HOPPER, **settings: Any) -> trt.FakeConfig:
    job = EngineJob("onnx", (), ((ROWS,),), BuilderSettings(**settings), target, "8.6.0")
    builder = trt.FakeBuilder()
    return configure(trt.MODULE, builder, trt.FakeNetwork([trt.FakeTensor("i0")]), job)  # type: ignore[no-any-return]


def test_defaults_need_nothing_that_8_6_lacks() -> None:
    config = _configured()
    assert config.flags == {trt.BuilderFlag.TF32}
    assert config.profiling_verbosity == trt.ProfilingVerbosity.DETAILED
    assert config.hardware_compatibility_level == trt.HardwareCompatibilityLevel.NONE
    assert config.profiles[0].shapes == {"i0": ((1, 8), (4, 8), (16, 8))}
    assert config.preview == {trt.PreviewFeature.PROFILE_SHARING_0806}
    assert config.sources == 31 and config.limits[trt.MemoryPoolType.WORKSPACE] == 1 << 37  # the library's own


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
    assert config.sources == 1 << 2 | 1 << 4
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
def test_rejects_a_setting_that_the_library_lacks_as_an_error_of_its_own(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(ToolchainError, match=rf"tensorrt 8\.6\.0 has no builder\.{name}"):
        _configured(**settings)


def test_rejects_a_compatibility_that_the_library_lacks() -> None:
    with pytest.raises(ToolchainError, match="has no compatibility same_compute_capability"):
        _configured(replace(HOPPER, compatibility="same_compute_capability"))
