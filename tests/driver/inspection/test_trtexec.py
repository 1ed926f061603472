"""The trtexec command for an engine step."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from tests.core.builder_values import other_value
from trtbuild.core.model.builder_settings import SETTINGS, BuilderSettings, MemoryPool
from trtbuild.core.model.spec import ShapeRange, Target
from trtbuild.core.partition.partitions import Partition, TensorType
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.driver.inspection import trtexec
from trtbuild.driver.inspection.documents import TrtexecCommand
from trtbuild.driver.inspection.trtexec import trtexec_command

#: The dynamic size of axis 0: symbol 0.
BATCH = ["sym", 0]


def shape_range(*sizes: tuple[int, ...]) -> dict[str, Any]:
    """The min, opt and max of an input, as in a recipe."""
    return asdict(ShapeRange(*sizes))


DEFAULT, ADA, HOPPER = BuilderSettings(), Target("ada", 89), Target("hopper", 90, toolchain="tensorrt")


def command_of(
    settings: BuilderSettings = DEFAULT,
    target: Target = ADA,
    version: str = "1.7.1.116",
    profiles: dict[str, Any] | None = None,
    dtype: str = "float32",
    shape: Any = (BATCH, 3),
) -> TrtexecCommand:
    ranges = profiles or {"0": {"i0": shape_range((1, 3), (4, 3), (8, 3)), "i1": shape_range((), (), ())}}
    recipe = Recipe(
        "engine",
        1,
        (
            ("onnx", "0" * 64),
            ("weights", {}),
            ("profiles", ranges),
            ("settings", asdict(settings)),
            ("target", asdict(target)),
            ("toolchain", [target.toolchain, version]),
        ),
    )
    tensor = TensorType(dtype, tuple(shape))
    inputs = (("input:0", tensor), ("input:1", TensorType(dtype, ())))
    part = Partition("p0", "tensorrt", "0" * 64, weights=(), inputs=inputs, outputs=(tensor,), calls=())
    return trtexec_command(recipe, part, [target.sm], "p0.onnx", "p0.plan")


def test_the_tool_for_tensorrt_rtx_is_tensorrt_rtx() -> None:
    result = command_of(replace(BuilderSettings(), workspace=64 << 30))
    assert result.tool == "tensorrt_rtx"
    assert result.arguments == [
        "--onnx=p0.onnx",
        "--saveEngine=p0.plan",
        "--skipInference",
        "--minShapes=i0:1x3",
        "--optShapes=i0:4x3",
        "--maxShapes=i0:8x3",
        "--builderOptimizationLevel=3",
        "--memPoolSize=workspace:64G",
        "--avgTiming=1",
        "--profilingVerbosity=detailed",
        "--computeCapabilities=89",
    ]
    assert result.differs == []


def test_static_inputs_have_no_shape_arguments() -> None:
    static = command_of(
        shape=(4, 3), profiles={"0": {"i0": shape_range((4, 3), (4, 3), (4, 3)), "i1": shape_range((), (), ())}}
    )
    assert not any("Shapes" in argument for argument in static.arguments)


def test_several_profiles_are_numbered_in_order() -> None:
    profile = {"i0": shape_range((1, 3), (1, 3), (1, 3)), "i1": shape_range((), (), ())}
    profiles = {str(number): profile for number in (10, 2, 0)}
    arguments = [argument for argument in command_of(profiles=profiles).arguments if argument.startswith("--profile=")]
    assert arguments == ["--profile=0", "--profile=2", "--profile=10"]


def test_before_tensorrt_10_the_command_has_only_the_first_of_several_profiles() -> None:
    profile = {"i0": shape_range((1, 3), (1, 3), (1, 3)), "i1": shape_range((), (), ())}
    result = command_of(target=HOPPER, version="8.6.0", profiles={"0": profile, "1": profile})
    assert "--profile=0" not in result.arguments
    assert any("one optimization profile before TensorRT 10, and the engine has 2" in text for text in result.differs)


def test_strong_typing_is_a_flag_of_tensorrt_9_and_10_only() -> None:
    assert "--stronglyTyped" in command_of(target=HOPPER, version="9.3.0").arguments
    assert "--stronglyTyped" in command_of(target=HOPPER, version="10.3.0").arguments
    assert "--stronglyTyped" not in command_of(target=HOPPER, version="11.0.0").arguments
    assert "--stronglyTyped" not in command_of().arguments
    old = command_of(target=HOPPER, version="8.6.0", dtype="float16")
    assert {"--inputIOFormats=fp16:chw,fp16:chw", "--outputIOFormats=fp16:chw"} <= set(old.arguments)
    assert any("precision of each layer" in text for text in old.differs)


def test_the_compatibility_policy_is_a_flag() -> None:
    arguments = command_of(target=replace(HOPPER, compatibility="ampere_plus"), version="10.3.0").arguments
    assert "--hardwareCompatibilityLevel=ampere+" in arguments
    assert not any("Compatibility" in argument for argument in command_of(target=HOPPER, version="10.3.0").arguments)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_an_argument_or_listed_as_a_difference(name: str) -> None:
    default = command_of(BuilderSettings(), HOPPER, "10.8.0")
    changed = command_of(replace(BuilderSettings(), **{name: other_value(name)}), HOPPER, "10.8.0")
    if SETTINGS[name].trtexec is None:
        assert changed.differs == [*default.differs, f"the tool has no flag for builder.{name}"]
    else:
        assert changed.arguments != default.arguments


def test_the_arguments_of_settings() -> None:
    changed = BuilderSettings(
        optimization_level=5,
        workspace=(1 << 20) * 3,
        max_aux_streams=2,
        tiling_optimization_level="moderate",
        l2_limit_for_tiling=100,
        max_num_tactics=7,
        avg_timing_iterations=4,
        tf32=False,
        sparse_weights=True,
        strict_nans=True,
        refit=True,
        strip_plan=True,
        weight_streaming=True,
        version_compatible=True,
        exclude_lean_runtime=True,
        distributive_independence=True,
        direct_io=True,
        require_user_allocation=True,
        monitor_memory=True,
        profiling_verbosity="none",
        tactic_sources=("cudnn",),
    )
    result = command_of(changed, HOPPER, "10.8.0")
    assert {"--memPoolSize=workspace:3M", "--tilingOptimizationLevel=2", "--noTF32", "--sparsity=enable"} <= set(
        result.arguments
    )
    assert "--tacticSources=-CUBLAS,-CUBLAS_LT,+CUDNN,-EDGE_MASK_CONVOLUTIONS,-JIT_CONVOLUTIONS" in result.arguments
    without_flags = ("strict_nans", "distributive_independence", "require_user_allocation")
    assert result.differs == [f"the tool has no flag for builder.{name}" for name in without_flags]


def test_the_text_is_a_command_line() -> None:
    assert command_of().text.startswith(
        "tensorrt_rtx --onnx=p0.onnx --saveEngine=p0.plan --skipInference --minShapes=i0:1x3"
    )


def test_all_memory_pools_are_one_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    """If ``--memPoolSize`` is repeated, trtexec uses only one of the values. Only `workspace` is a memory pool, so the test
    treats `l2_limit_for_tiling` as a second pool."""
    pool = replace(
        SETTINGS["workspace"],
        config_part=MemoryPool("TACTIC_SHARED_MEMORY"),
        trtexec="--memPoolSize=tacticSharedMem:{}",
    )
    monkeypatch.setattr(trtexec, "SETTINGS", {**SETTINGS, "l2_limit_for_tiling": pool})
    result = command_of(replace(BuilderSettings(), workspace=1 << 30, l2_limit_for_tiling=48 << 10))
    assert [argument for argument in result.arguments if "memPool" in argument] == [
        "--memPoolSize=workspace:1G,tacticSharedMem:48K"
    ]
