"""`describe_inputs` converts arguments of `trtbuild.compile` to the inputs, profiles and dims of a model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim

from trtbuild.core.model.spec import Input as SpecInput
from trtbuild.core.model.spec import NamedDim, ShapeRange
from trtbuild.driver.in_program.arguments.exported import describe_program
from trtbuild.driver.in_program.arguments.inputs import Input, describe_inputs, dtype_name
from trtbuild.errors import UsageError

ROWS = Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(16, 8))


def shapes(description: Any, profile: int = 0) -> dict[str, ShapeRange]:
    return dict(description.profiles[profile].shapes)


def test_a_static_shape_is_min_opt_and_max() -> None:
    description = describe_inputs([Input((2, 3), dtype=torch.float16)], arguments=["x"])
    assert description.inputs == (SpecInput("x", "float16"),)
    assert shapes(description) == {"x": ShapeRange((2, 3), (2, 3), (2, 3))}


def test_an_input_may_have_a_range_of_values() -> None:
    description = describe_inputs(
        [Input((2, 3), dtype="int64", range=(0, 30521))], {"y": Input((2,), range=[0, 1])}, arguments=["x"]
    )
    assert [entry.range for entry in description.inputs] == [(0, 30521), (0.0, 1.0)]
    assert "range=(0, 30521)" in repr(Input((2, 3), dtype="int64", range=(0, 30521)))
    for values, message in [
        (5, "range of Input 'x' is 5"),
        ((5, 0), "largest value first"),
        ((0, 1.5), "whole numbers"),
    ]:
        with pytest.raises(UsageError, match=message):
            Input((1,), dtype="int64", name="x", range=values)


def test_a_range_of_shapes_is_a_profile() -> None:
    assert shapes(describe_inputs([ROWS], arguments=["x"])) == {"x": ShapeRange((1, 8), (4, 8), (16, 8))}


def test_axes_with_the_same_name_in_shared_dims_are_one_dim() -> None:
    ranged = {"min_shape": (1, 8), "opt_shape": (4, 8), "max_shape": (16, 8)}
    ids = Input(**ranged, shared_dims={0: "batch"}, name="ids")
    mask = Input(**ranged, shared_dims={0: "batch"})
    other = Input(min_shape=(1,), opt_shape=(2,), max_shape=(3,), shared_dims={0: "other"})
    found = describe_inputs([ids, other], {"mask": mask}, arguments=["x", "y"])
    assert found.dims == (NamedDim("batch", (("ids", 0), ("mask", 0))), NamedDim("other", (("y", 0),)))
    with pytest.raises(UsageError, match="the dim 'batch' is in dims and in shared_dims"):
        describe_inputs([ids], dims={"batch": ["ids.1"]})
    for wrong in ({2: "batch"}, {0: 3}, ["batch"], {True: "batch"}):
        with pytest.raises(UsageError, match="shared_dims of Input"):
            Input((1, 8), shared_dims=wrong)  # type: ignore[arg-type]


def test_shared_dims_may_be_in_any_profile() -> None:
    ids = Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(16, 8))
    named = Input(min_shape=(17, 8), opt_shape=(32, 8), max_shape=(64, 8), shared_dims={0: "batch"})
    found = describe_inputs([[ids, ids], [named, named]], arguments=["x", "y"])
    assert found.dims == (NamedDim("batch", (("x", 0), ("y", 0))),)


def test_tensors_give_a_static_shape_and_their_dtype() -> None:
    description = describe_inputs(
        [torch.zeros(2, 3, dtype=torch.int64)], {"mask": torch.zeros(2, dtype=torch.bool)}, arguments=["ids"]
    )
    assert description.inputs == (SpecInput("ids", "int64"), SpecInput("mask", "bool", keyword=True))
    assert shapes(description)["mask"] == ShapeRange((2,), (2,), (2,))


def test_a_single_input_needs_no_list() -> None:
    assert describe_inputs(ROWS, arguments=["x"]) == describe_inputs([ROWS], arguments=["x"])


def test_names_come_from_the_input_then_from_the_module_then_from_the_position() -> None:
    inputs = [Input((1,), name="image"), Input((1,)), Input((1,))]
    assert [entry.name for entry in describe_inputs(inputs, arguments=["x", "y"]).inputs] == ["image", "y", "input_2"]


def test_lists_of_lists_are_profiles() -> None:
    large = Input(min_shape=(16, 8), opt_shape=(64, 8), max_shape=(64, 8))
    description = describe_inputs([[ROWS], [large]], {"scale": Input((4,))}, arguments=["x"])
    assert [profile.name for profile in description.profiles] == ["0", "1"]
    assert shapes(description, 1)["x"].max == (64, 8)
    assert shapes(description, 1)["scale"].max == (4,)


def test_dims_are_named_as_in_a_manifest() -> None:
    dims = {"batch": ["x.0", "y.0"], "width": {"at": "x.1", "multiple_of": 8}}
    description = describe_inputs([ROWS, ROWS], arguments=["x", "y"], dims=dims)
    assert description.dims == (NamedDim("batch", (("x", 0), ("y", 0))), NamedDim("width", (("x", 1),), 8))


def test_dims_of_torch_export_give_names_ranges_and_multiples() -> None:
    batch, width = Dim("batch", min=1, max=32), Dim("width", min=1, max=4)
    description = describe_inputs(
        [torch.zeros(4, 16), torch.zeros(4, 3)],
        arguments=["x", "y"],
        dynamic_shapes={"x": {0: batch, 1: 8 * width}, "y": (batch, None)},
    )
    assert shapes(description) == {"x": ShapeRange((1, 8), (4, 16), (32, 32)), "y": ShapeRange((1, 3), (4, 3), (32, 3))}
    assert description.dims == (NamedDim("batch", (("x", 0), ("y", 0))), NamedDim("width", (("x", 1),), 8))


def test_a_number_for_an_axis_is_its_static_size() -> None:
    description = describe_inputs(
        [torch.zeros(4, 16), torch.zeros(4, 3)],
        arguments=["x", "y"],
        dynamic_shapes={"x": {0: Dim("batch", min=1, max=32), 1: 16}, "y": (4, 3)},
    )
    assert shapes(description) == {"x": ShapeRange((1, 16), (4, 16), (32, 16)), "y": ShapeRange((4, 3), (4, 3), (4, 3))}


def test_static_says_that_an_axis_is_static_and_not_how_large() -> None:
    description = describe_inputs(
        [torch.zeros(4, 16)], arguments=["x"], dynamic_shapes={"x": {0: Dim("batch", min=1, max=32), 1: Dim.STATIC}}
    )
    assert shapes(description) == {"x": ShapeRange((1, 16), (4, 16), (32, 16))}
    with pytest.raises(UsageError, match=r"has Dim\.STATIC for x\.0, which has sizes from 1 to 16 in inputs"):
        describe_inputs([ROWS], arguments=["x"], dynamic_shapes={"x": {0: Dim.STATIC}})


def test_a_hint_of_torch_export_may_give_a_range_without_a_name() -> None:
    description = describe_inputs(
        [torch.zeros(4, 16)],
        arguments=["x"],
        dynamic_shapes={"x": (Dim.DYNAMIC(min=2, max=8), Dim.AUTO(max=32))},
    )
    assert shapes(description) == {"x": ShapeRange((2, 1), (4, 16), (8, 32))}
    assert description.dims == ()


def test_a_dim_without_a_min_begins_at_1() -> None:
    """torch sets the min of such a Dim to 0, and a dynamic axis cannot have min 0."""
    batch = Dim("batch", max=8)
    description = describe_inputs(
        [torch.zeros(4, 16)], arguments=["x"], dynamic_shapes={"x": {0: batch, 1: 4 * Dim("width", max=8)}}
    )
    assert batch.min == 0
    assert shapes(description) == {"x": ShapeRange((1, 4), (4, 16), (8, 32))}


def test_inputs_are_passed_as_the_exported_program_takes_them() -> None:
    """They may be given in the other way. Their names decide, and not the order of `kwarg_inputs`."""

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x - y

    batch = Dim("batch", min=1, max=16)
    axes = {0: batch}
    program = torch.export.export(Net(), (torch.zeros(4, 8), torch.zeros(4, 8)), dynamic_shapes={"x": axes, "y": axes})
    description = describe_program(program, None, {"y": ROWS, "x": ROWS}, None, None)
    assert [(entry.name, entry.keyword) for entry in description.inputs] == [("x", False), ("y", False)]
    description = describe_program(program, [ROWS], {"y": ROWS}, None, None)
    assert [(entry.name, entry.keyword) for entry in description.inputs] == [("x", False), ("y", False)]
    named_z = Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(8, 8), name="z")
    with pytest.raises(UsageError, match="kwarg_inputs has 'x', and an entry of inputs takes its place"):
        describe_program(program, [named_z], {"x": ROWS}, None, None)


def test_the_name_of_a_multiple_of_a_dim_is_not_the_name_of_another_dim() -> None:
    batch, batch_2 = Dim("batch", min=1, max=4), Dim("batch_2", min=1, max=8)
    description = describe_inputs(
        [torch.zeros(4), torch.zeros(4), torch.zeros(4)],
        arguments=["x", "y", "z"],
        dynamic_shapes={"x": {0: batch}, "y": {0: batch_2}, "z": {0: 2 * batch}},
    )
    assert description.dims == (
        NamedDim("batch", (("x", 0),)),
        NamedDim("batch_2", (("y", 0),)),
        NamedDim("batch_2_", (("z", 0),), 2),
    )


def test_a_dim_of_torch_export_is_merged_with_the_dim_of_the_same_name() -> None:
    batch = Dim("batch", min=1, max=32)
    description = describe_inputs(
        [torch.zeros(4, 16), torch.zeros(4, 3)],
        arguments=["x", "y"],
        dims={"batch": ["x.0"]},
        dynamic_shapes={"x": {0: batch}, "y": {0: batch}},
    )
    assert description.dims == (NamedDim("batch", (("x", 0), ("y", 0))),)


@pytest.mark.parametrize("dtype", [torch.float32, "float32", "torch.float32", "float"])
def test_dtypes_of_torch_and_names_mean_the_same(dtype: Any) -> None:
    assert dtype_name(dtype) == "float32"


@pytest.mark.parametrize(
    ("short", "name"), [("fp16", "float16"), ("bf16", "bfloat16"), ("f32", "float32"), ("i64", "int64")]
)
def test_dtypes_have_the_short_names_of_precisions(short: str, name: str) -> None:
    assert Input((1,), dtype=short).dtype == name


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Input(), "lacks min_shape and opt_shape and max_shape"),
        (lambda: Input(min_shape=(1,), max_shape=(2,), name="x"), "Input 'x' lacks opt_shape"),
        (lambda: Input((1,), min_shape=(1,)), "has shape and a range"),
        (lambda: Input((-1, 3)), "a size cannot be negative"),
        (lambda: Input("ab"), "is not a shape"),
        (lambda: Input("12"), "is not a shape"),
        (lambda: Input((2.5, 3)), "is not a shape"),
        (lambda: Input((1,), dtype="float8"), "is not a dtype"),
        (lambda: Input((1,), format=torch.channels_last), "engines take contiguous tensors"),
        (lambda: describe_inputs([3]), "is 3, neither an Input nor a tensor"),
        (
            lambda: describe_inputs([ROWS], {"mask": None}),
            "kwarg_inputs['mask'] is None, neither an Input nor a tensor",
        ),
        (lambda: describe_inputs(None), "there are no inputs"),
        (lambda: describe_inputs([Input((1,), name="x"), Input((1,), name="x")]), "two inputs are called 'x'"),
        (lambda: describe_inputs([[ROWS], [Input((1, 8), dtype="float16")]]), "the inputs of profile 1 differ"),
        (lambda: describe_inputs([[ROWS], [ROWS]], [{}, {}, {}]), "inputs have 2 profiles and kwarg_inputs 3"),
        (lambda: describe_inputs([ROWS], arguments=["x"], dims={"batch": ["y.0"]}), "not an axis of an input"),
        (lambda: describe_inputs([ROWS], arguments=["x"], dims={"batch": {}}), "which is not a list of axes"),
        (lambda: describe_inputs([ROWS], arguments=["x"], dims={"batch": None}), "which is not a list of axes"),
        (lambda: describe_inputs([ROWS], arguments=["x"], dynamic_shapes={"y": {}}), "which is not an input"),
        (
            lambda: describe_inputs([ROWS], arguments=["x"], dynamic_shapes={"x": {5: Dim("b", max=2)}}),
            "which has 2 axes",
        ),
        (
            lambda: describe_inputs(
                [torch.zeros(4, 8), torch.zeros(4, 8)],
                arguments=["x", "y"],
                dims={"b": {"at": "x.0", "multiple_of": 2}},
                dynamic_shapes={"y": {0: Dim("b", max=8)}},
            ),
            "multiples of 1 in dynamic_shapes, but of 2 in dims",
        ),
        (
            lambda: describe_inputs([torch.zeros(4, 8)], arguments=["x"], dynamic_shapes={"x": {0: Dim("b")}}),
            "has no max",
        ),
        (
            lambda: describe_inputs([torch.zeros(4)], arguments=["x"], dynamic_shapes={"x": {0: Dim.AUTO}}),
            "has no range",
        ),
    ],
)
def test_rejects_invalid_inputs(make: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert message in caught.value.text
    assert caught.value.hint
