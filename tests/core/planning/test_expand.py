"""Deriving engine jobs from partitions: the ranges of a partition's inputs, and the fields of a job."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from trtbuild.core.engines.engine_job import EngineJob, Weight
from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.declared_shapes import derive
from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Input, Model, NamedDim, Origin, Profile, ShapeRange, Source, Target
from trtbuild.core.partition.partitions import Partition, TensorType
from trtbuild.core.planning.expand import engine_job, input_range, symbol_values
from trtbuild.core.values.codec import decode, encode
from trtbuild.core.values.expressions import Expression


def one_axis(*ranges: tuple[int, int, int], multiple_of: int = 1) -> Model:
    """Return a model with one input ``x`` of one axis, and a profile for each of `ranges`."""
    profiles = [
        Profile(f"p{k}", (("x", ShapeRange((low,), (mid,), (high,))),)) for k, (low, mid, high) in enumerate(ranges)
    ]
    return Model(
        name="m",
        source=Source("python", "m:build"),
        inputs=(Input("x"),),
        profiles=tuple(profiles),
        targets=(Target("ada", 89),),
        origin=Origin("trtbuild.yaml", 1),
        dims=(NamedDim("n", (("x", 0),), multiple_of),),
    )


def shapes_of(model: Model) -> ShapePlan:
    shapes, problems = derive(model.inputs, model.dims, model.profiles)
    assert shapes is not None, problems
    return shapes


def ranges_of(model: Model, *shape: Any) -> list[tuple[Any, Any, Any]]:
    """Return the min, opt and max of a tensor of this shape in each profile."""
    shape_ranges = [input_range(shape, shapes_of(model), profile) for profile in model.profiles]
    return [(entry.min, entry.opt, entry.max) for entry in shape_ranges]


SYM: Expression = ["sym", 0]


def test_a_size_that_is_the_symbol_has_its_range() -> None:
    assert ranges_of(one_axis((1, 4, 8)), SYM, 3) == [((1, 3), (4, 3), (8, 3))]


def test_ranges_come_from_bounds_not_from_the_values_at_min_and_max() -> None:
    """``10 - s`` becomes smaller when s grows from 1 to 8. So its values at min and max, 9 and 2, are not a valid range."""
    assert ranges_of(one_axis((1, 4, 8)), ["add", 10, ["mul", -1, SYM]]) == [((2,), (6,), (9,))]
    assert ranges_of(one_axis((1, 4, 8)), ["add", 1, ["mod", SYM, 8]]) == [((1,), (5,), (8,))]


def test_each_profile_has_its_own_range() -> None:
    assert ranges_of(one_axis((1, 1, 1), (2, 4, 8)), ["mul", 2, SYM]) == [((2,), (2,), (2,)), ((4,), (8,), (16,))]


def test_the_symbol_of_a_dim_with_multiple_of_is_the_size_divided_by_the_multiple() -> None:
    model = one_axis((64, 320, 640), multiple_of=32)
    assert symbol_values(shapes_of(model), [320]) == (10,)
    assert ranges_of(model, ["mul", 32, SYM]) == [((64,), (320,), (640,))]
    assert ranges_of(model, ["mul", 4, SYM]) == [((8,), (40,), (80,))]  # after strides of 8


def test_opt_is_between_min_and_max() -> None:
    for size in (["floordiv", SYM, 3], ["mod", SYM, 5], ["add", 6, ["mul", -1, SYM]], ["pow", SYM, 2]):
        ((low,), (mid,), (high,)) = ranges_of(one_axis((1, 4, 8)), size)[0]
        assert 0 <= low <= mid <= high


def test_no_size_is_negative() -> None:
    assert ranges_of(one_axis((1, 4, 8)), ["add", 4, ["mul", -1, SYM]]) == [((0,), (0,), (3,))]
    assert ranges_of(one_axis((1, 4, 8)), ["add", 2, ["mul", -1, SYM]]) == [((0,), (0,), (1,))]
    assert ranges_of(one_axis((4, 4, 8)), ["add", 2, ["mul", -1, SYM]]) == [((0,), (0,), (0,))]


def test_a_size_that_depends_on_data_has_no_range() -> None:
    with pytest.raises(ValueError, match="depends on data"):
        ranges_of(one_axis((1, 4, 8)), ["data", 0])


MODEL = one_axis((1, 1, 1), (2, 4, 8))
WEIGHTS = tuple(Weight("float32", (k,), str(k) * 64) for k in range(4))
PARTITION = Partition(
    name="p",
    kind="tensorrt",
    graph="a" * 64,
    weights=(3, 1, 3),
    inputs=(("input:0", TensorType("float32", (SYM, 3))), ("q:0", TensorType("int64", (["mul", 2, SYM],)))),
    outputs=(),
    calls=(),
)


def a_job() -> EngineJob:
    target = MODEL.targets[0]
    return engine_job(MODEL, shapes_of(MODEL), PARTITION, "b" * 64, WEIGHTS, BuilderSettings(), target, "1.4")


def test_a_job_has_the_weights_of_its_slots_in_order() -> None:
    assert a_job().weights == (WEIGHTS[3], WEIGHTS[1], WEIGHTS[3])


def test_a_job_has_all_profiles_in_order_and_all_inputs_in_order() -> None:
    assert a_job().profiles == (
        (ShapeRange((1, 3), (1, 3), (1, 3)), ShapeRange((2,), (2,), (2,))),
        (ShapeRange((2, 3), (4, 3), (8, 3)), ShapeRange((4,), (8,), (16,))),
    )


def test_a_job_has_its_onnx_target_and_toolchain() -> None:
    job = a_job()
    assert (job.onnx, job.target, job.toolchain_version) == ("b" * 64, MODEL.targets[0], "1.4")


def test_a_job_is_read_back_from_json() -> None:
    job = replace(a_job(), settings=BuilderSettings(workspace=1 << 30, tf32=False))
    assert decode(EngineJob, json.loads(json.dumps(encode(job)))) == job
