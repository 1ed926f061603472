"""The trtexec command that is equal to an engine step."""

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
from trtbuild.driver.inspection.trtexec import command

BATCH = ["sym", 0]


def range_(*sizes: tuple[int, ...]) -> dict[str, Any]:
    return asdict(ShapeRange(*sizes))


DEFAULT, ADA = BuilderSettings(), Target("ada", 89)


def of(
    settings: BuilderSettings = DEFAULT,
    target: Target = ADA,
    version: str = "1.7.1.116",
    profiles: dict[str, Any] | None = None,
    dtype: str = "float32",
    shape: Any = (BATCH, 3),
) -> TrtexecCommand:
    ranges = profiles or {"0": {"i0": range_((1, 3), (4, 3), (8, 3)), "i1": range_((), (), ())}}
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
    return command(recipe, part, [target.sm], "p0.onnx", "p0.plan")


TENSORRT = Target("hopper", 90, toolchain="tensorrt")


def test_for_tensorrt_rtx_it_is_the_tool_of_that_name() -> None:
    found = of(replace(BuilderSettings(), workspace=64 << 30))
    assert found.tool == "tensorrt_rtx"
    assert found.arguments == [
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
    assert found.differs == []


def test_shapes_of_static_inputs_are_not_said() -> None:
    static = of(shape=(4, 3), profiles={"0": {"i0": range_((4, 3), (4, 3), (4, 3)), "i1": range_((), (), ())}})
    assert not any("Shapes" in argument for argument in static.arguments)


def test_several_profiles_are_numbered_in_order() -> None:
    one = {"i0": range_((1, 3), (1, 3), (1, 3)), "i1": range_((), (), ())}
    profiles = {str(number): one for number in (10, 2, 0)}
    said = [argument for argument in of(profiles=profiles).arguments if argument.startswith("--profile=")]
    assert said == ["--profile=0", "--profile=2", "--profile=10"]


def test_before_10_trtexec_takes_one_profile_and_that_is_said() -> None:
    one = {"i0": range_((1, 3), (1, 3), (1, 3)), "i1": range_((), (), ())}
    found = of(target=TENSORRT, version="8.6.0", profiles={"0": one, "1": one})
    assert "--profile=0" not in found.arguments
    assert any("one optimization profile before TensorRT 10, and the engine has 2" in text for text in found.differs)


def test_networks_are_strongly_typed_where_that_has_to_be_said() -> None:
    assert "--stronglyTyped" in of(target=TENSORRT, version="10.3.0").arguments
    assert "--stronglyTyped" not in of(target=TENSORRT, version="11.0.0").arguments
    assert "--stronglyTyped" not in of().arguments
    old = of(target=TENSORRT, version="8.6.0", dtype="float16")
    assert {"--inputIOFormats=fp16:chw,fp16:chw", "--outputIOFormats=fp16:chw"} <= set(old.arguments)
    assert any("precision of each layer" in text for text in old.differs)


def test_the_compatibility_policy_is_a_flag() -> None:
    said = of(target=replace(TENSORRT, compatibility="ampere_plus"), version="10.3.0").arguments
    assert "--hardwareCompatibilityLevel=ampere+" in said
    assert not any("Compatibility" in argument for argument in of(target=TENSORRT, version="10.3.0").arguments)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_an_argument_or_named_as_having_none(name: str) -> None:
    plain = of(BuilderSettings(), TENSORRT, "10.8.0")
    changed = of(replace(BuilderSettings(), **{name: other_value(name)}), TENSORRT, "10.8.0")
    if SETTINGS[name].trtexec is None:
        assert changed.differs == [*plain.differs, f"the tool has no flag for builder.{name}"]
    else:
        assert changed.arguments != plain.arguments


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
    found = of(changed, TENSORRT, "10.8.0")
    assert {"--memPoolSize=workspace:3M", "--tilingOptimizationLevel=2", "--noTF32", "--sparsity=enable"} <= set(
        found.arguments
    )
    assert "--tacticSources=-CUBLAS,-CUBLAS_LT,+CUDNN,-EDGE_MASK_CONVOLUTIONS,-JIT_CONVOLUTIONS" in found.arguments
    assert len(found.differs) == 3


def test_the_text_can_be_typed() -> None:
    assert of().text.startswith("tensorrt_rtx --onnx=p0.onnx --saveEngine=p0.plan --skipInference --minShapes=i0:1x3")


def test_all_memory_pools_are_one_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    """trtexec reads the argument once."""
    pool = replace(
        SETTINGS["workspace"], sets=MemoryPool("TACTIC_SHARED_MEMORY"), trtexec="--memPoolSize=tacticSharedMem:{}"
    )
    monkeypatch.setattr(trtexec, "SETTINGS", {**SETTINGS, "l2_limit_for_tiling": pool})
    found = of(replace(BuilderSettings(), workspace=1 << 30, l2_limit_for_tiling=48 << 10))
    assert [argument for argument in found.arguments if "memPool" in argument] == [
        "--memPoolSize=workspace:1G,tacticSharedMem:48K"
    ]
