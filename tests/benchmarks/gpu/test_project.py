"""The projects that are measured on a GPU have all their models, with points, inputs and eager PyTorch for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gpu.cases import cases, output_tensors
from benchmarks.gpu.project import Hardware, write_examples, write_quantized, write_resnet, write_vit

#: An H100 host that has neither cuBLAS nor cuDNN.
_HOPPER = Hardware(90, "tensorrt", "8.6.0", tactic_sources=())


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_examples(tmp_path_factory.mktemp("gpu") / "examples", _HOPPER)


def test_writes_every_example_for_one_gpu_target(examples: Path) -> None:
    manifests = Path(__file__).parents[3] / "manifests"
    models = {case.name: case.model for case in cases(examples)}
    assert {case.name for case in cases(manifests.parent)} < set(models)
    assert {target.name for model in models.values() for target in model.targets} == {"gpu"}
    targets = {(target.sm, target.toolchain, target.version) for model in models.values() for target in model.targets}
    assert targets == {(90, "tensorrt", "8.6.0")}
    assert {model.builder.tactic_sources for model in models.values()} == {()}
    assert {models[name].precision for name in ("class_token_half", "detector_half")} == {"float16"}


def test_writing_again_does_not_change_the_files(examples: Path) -> None:
    def modification_times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in examples.rglob("*") if path.is_file()}

    before = modification_times()
    write_examples(examples, _HOPPER)
    assert modification_times() == before


def test_writes_vit_with_and_without_granularity(tmp_path: Path) -> None:
    models = {case.name: case.model for case in cases(write_vit(tmp_path, _HOPPER, layers=2, hidden=64, image=32))}
    assert set(models) == {"whole", "whole_half", "by_layer", "by_layer_half"}
    assert models["by_layer"].partition.granularity == ("layers.*",)
    assert models["whole"].source == models["by_layer"].source
    assert models["by_layer_half"].precision == "float16"


def test_writes_resnet_in_both_precisions(tmp_path: Path) -> None:
    (whole, half) = cases(write_resnet(tmp_path, _HOPPER))
    assert (whole.model.precision, half.model.precision) == ("float32", "float16")
    assert whole.model.source == half.model.source
    assert whole.model.builder.tactic_sources == ("edge_mask_convolutions", "jit_convolutions")
    args, _ = half.inputs(half.points(count=0)[0], "cpu")
    assert tuple(half.eager("cpu")(*args).shape) == (1, 1000)


def test_writes_quantized_models_beside_the_same_models_in_floats(tmp_path: Path) -> None:
    models = {case.name: case.model for case in cases(write_quantized(tmp_path, _HOPPER, layers=1, hidden=64))}
    assert len(models) == 8
    for name, model in models.items():
        assert (model.precision == "float16") == ("float16" in name)
        assert (model.quantization is not None) == ("int8" in name)
        assert model.source == models[f"{name.partition('_')[0]}_float32"].source
        assert model.reference


def test_cases_have_points_in_every_profile_and_inputs_for_eager(examples: Path) -> None:
    (case,) = [case for case in cases(examples) if case.name == "detector"]
    points = case.points(count=2)
    assert {point.profile for point in points} == {0, 1} and len(points) == 2 * (3 + 2)
    assert all(size % 32 == 0 for point in points for size in point.sizes)
    args, kwargs = case.inputs(points[0], "cpu")
    assert not kwargs and [tuple(value.shape) for value in args] == [(1, 3, 64, 64)]
    assert len(output_tensors(case.eager("cpu")(*args))) == 2
    assert case.describe(points[2]) == "max of square (height 640, width 640)"


def test_runs_eager_for_every_kind_of_source(examples: Path) -> None:
    cases_by_kind = {case.model.source.kind: case for case in cases(examples)}
    assert {"python", "exported_program", "onnx", "torchscript", "network"} <= set(cases_by_kind)
    for case in cases_by_kind.values():
        args, kwargs = case.inputs(case.points(count=0)[0], "cpu")
        assert output_tensors(case.eager("cpu")(*args, **kwargs))


def test_a_target_may_use_rtx_without_a_version() -> None:
    assert "sm: 89, toolchain: tensorrt-rtx}" in Hardware(89, "tensorrt-rtx").manifest()
