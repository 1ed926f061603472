"""Engines that Triton runs itself: one Triton model for each engine, and an ensemble that connects them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.driver.outputs.triton.repositories import (
    B,
    H,
    a_package_index,
    a_target,
    configurations,
    one_engine,
    part,
    profile,
    repository,
    schema,
    tensor,
)


def types_and_dims(message: Any) -> dict[str, tuple[str, list[int]]]:
    types = schema().DataType
    return {entry.name: (types.Name(entry.data_type), list(entry.dims)) for entry in message}


def test_an_ensemble_connects_the_engines_and_has_the_names_of_the_manifest() -> None:
    configs = configurations(a_package_index())
    assert set(configs) == {"det", "det.p0", "det.p1"}
    first, second, ensemble = configs["det.p0"], configs["det.p1"], configs["det"]
    assert (first.platform, second.platform, ensemble.platform) == ("tensorrt_plan", "tensorrt_plan", "ensemble")
    assert types_and_dims(first.input) == {"i0": ("TYPE_FP32", [-1, 3, -1, 64])}
    assert types_and_dims(first.output) == {"o0": ("TYPE_FP16", [-1, 8, -1])}
    assert types_and_dims(second.output) == {"o0": ("TYPE_FP32", [-1, 10, 4]), "o1": ("TYPE_FP32", [-1, 10])}
    assert types_and_dims(ensemble.input) == {"image": ("TYPE_FP32", [3, -1, 64])}
    assert types_and_dims(ensemble.output) == {"boxes": ("TYPE_FP32", [10, 4]), "scores": ("TYPE_FP32", [10])}
    first_step, second_step = ensemble.ensemble_scheduling.step
    assert (first_step.model_name, dict(first_step.input_map), dict(first_step.output_map)) == (
        "det.p0",
        {"i0": "image"},
        {"o0": "p0.o0"},
    )
    assert dict(second_step.input_map) == {"i0": "p0.o0"}
    assert dict(second_step.output_map) == {"o0": "boxes", "o1": "scores"}


def test_plans_are_in_the_version_directory_of_their_engine() -> None:
    files = repository(a_package_index())
    assert set(files) == {
        "det.p0/1/hopper.plan",
        "det.p0/config.pbtxt",
        "det.p1/1/hopper.plan",
        "det.p1/config.pbtxt",
        "det/config.pbtxt",
        "det/1/trtbuild.json",  # an ensemble needs a version directory, too
    }
    turns = {path: file.turn for path, file in files.items()}  # files with a lower turn are written first
    assert turns["det.p0/1/hopper.plan"] < turns["det.p0/config.pbtxt"] < turns["det/config.pbtxt"]


def test_an_ensemble_is_batched_and_its_engines_are_not() -> None:
    """For an engine with a `max_batch_size`, Triton's TensorRT backend would merge requests into batches."""
    configs = configurations(a_package_index())
    assert (configs["det"].max_batch_size, configs["det.p0"].max_batch_size) == (8, 0)
    assert not any(config.HasField("dynamic_batching") for config in configs.values())


def test_exact_plans_are_listed_by_compute_capability_and_a_compatible_plan_is_the_default() -> None:
    index = a_package_index()
    parts = index["targets"]["hopper"]["partitions"]["partitions"]
    outs = ["p1:0", "p1:1"]
    index["targets"] |= {
        "blackwell": a_target(120, parts, outs),
        "ampere": a_target(80, parts, outs, compatibility="ampere_plus"),
    }
    config = configurations(index)["det.p0"]
    assert dict(config.cc_model_filenames) == {"9.0": "hopper.plan", "12.0": "blackwell.plan"}
    assert config.default_model_filename == "ampere.plan"
    assert {path for path in repository(index) if path.startswith("det.p0/1/")} == {
        "det.p0/1/hopper.plan",
        "det.p0/1/blackwell.plan",
        "det.p0/1/ampere.plan",
    }


def test_without_a_compatible_plan_there_is_no_default_plan() -> None:
    config = configurations(a_package_index())["det.p0"]
    assert dict(config.cc_model_filenames) == {"9.0": "hopper.plan"}
    assert config.default_model_filename == ""


def test_one_instance_has_all_profiles() -> None:
    shapes = ([1, 3, 32, 64], [1, 3, 32, 64], [1, 3, 32, 64])
    index = a_package_index()
    index["profiles"].append(profile("single", image=shapes))
    (group,) = configurations(index)["det.p1"].instance_group
    assert (list(group.profile), group.kind) == (["0", "1"], schema().ModelInstanceGroup.KIND_GPU)


def test_engines_reshape_scalars_and_the_ensemble_does_not() -> None:
    inputs = [tensor("float32", B, 4, name="x"), tensor("float32", name="scale")]
    configs = configurations(one_engine(inputs, [tensor("float32", name="loss")]))
    scale = configs["det.model"].input[1]
    assert list(scale.dims) == [1] and scale.HasField("reshape") and not scale.reshape.shape
    assert types_and_dims(configs["det"].input)["scale"] == ("TYPE_FP32", [1])
    assert types_and_dims(configs["det"].output) == {"loss": ("TYPE_FP32", [1])}
    assert not any(entry.HasField("reshape") for entry in (*configs["det"].input, *configs["det"].output))


def test_a_tensor_may_be_an_output_and_an_input_of_a_later_engine() -> None:
    x, y, z = tensor("float32", B, 4), tensor("float32", B, 5), tensor("float32", B, 6)
    parts = [
        part("a", [("input:0", x)], [y]),
        part("b", [("a:0", y), ("input:0", x)], [z]),
    ]
    index = a_package_index(
        inputs=[{**x, "name": "x", "keyword": True}],
        outputs=[{**z, "name": "z"}, {**y, "name": "y"}],
        targets={"hopper": a_target(90, parts, ["b:0", "a:0"])},
        profiles=[profile("rows", x=([1, 4], [2, 4], [8, 4]))],
    )
    step = configurations(index)["det"].ensemble_scheduling.step[1]
    assert dict(step.input_map) == {"i0": "y", "i1": "x"}


def test_a_tensor_between_engines_never_has_the_name_of_an_output() -> None:
    x = tensor("float32", B, 4)
    parts = [part("a", [("input:0", x)], [x]), part("b", [("a:0", x)], [x])]
    index = a_package_index(
        inputs=[{**x, "name": "x", "keyword": False}],
        outputs=[{**x, "name": "a.o0"}],
        targets={"hopper": a_target(90, parts, ["b:0"])},
        profiles=[profile("rows", x=([1, 4], [2, 4], [8, 4]))],
    )
    first, second = configurations(index)["det"].ensemble_scheduling.step
    assert first.output_map["o0"] == second.input_map["i0"] == "a.o0_"
    assert second.output_map["o0"] == "a.o0"


@pytest.mark.parametrize("name", ["../../stolen", "/etc/stolen", "a/b", "..", ".hidden", "a\nb", "a\\b", ""])
@pytest.mark.parametrize("kind", ["model", "target", "partition"])
def test_rejects_names_that_are_not_safe_as_file_names(name: str, kind: str) -> None:
    index = a_package_index()
    if kind == "model":
        index["model"] = name
    elif kind == "target":
        index["targets"] = {name: index["targets"]["hopper"]}
    else:
        index["targets"]["hopper"]["partitions"]["partitions"][0]["name"] = name
    with pytest.raises(ValueError, match=r"not a name of a model|not a file of a package"):
        repository(index)


def test_inputs_have_the_types_of_the_model() -> None:
    names = {
        "bool": "TYPE_BOOL",
        "uint8": "TYPE_UINT8",
        "int32": "TYPE_INT32",
        "int64": "TYPE_INT64",
        "float16": "TYPE_FP16",
        "bfloat16": "TYPE_BF16",
    }
    inputs = [tensor(dtype, B, H, name=dtype) for dtype in names]
    shapes = {dtype: ([1, 32], [1, 32], [8, 32]) for dtype in names}
    index = one_engine(inputs, [tensor("float32", B, 2, name="y")], [profile("rows", **shapes)])
    configs = configurations(index)
    assert types_and_dims(configs["det"].input) == {dtype: (name, [-1]) for dtype, name in names.items()}
