"""The shapes of a call's inputs: given shapes decide their dims, and a profile decides the other dims."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trtbuild.core.model.spec import ShapeRange
from trtbuild.core.packages.package_index import PackageIndex, PackedDim, PackedProfile, PackedTensor
from trtbuild.driver.running.shapes import dim_sizes, shapes_of

B, H = ("sym", 0), ("mul", 32, ("sym", 1))


def a_package_index() -> PackageIndex:
    inputs: Any = (
        PackedTensor("image", "float32", (B, 3, H)),
        PackedTensor("mask", "bool", (B, H)),
        PackedTensor("scale", "float32", ()),
    )
    small = PackedProfile(
        "small",
        (ShapeRange((1, 3, 32), (2, 3, 64), (4, 3, 96)), ShapeRange((1, 32), (2, 64), (4, 96)), ShapeRange((), (), ())),
    )
    large = PackedProfile(
        "large",
        (
            ShapeRange((4, 3, 96), (8, 3, 320), (16, 3, 640)),
            ShapeRange((4, 96), (8, 320), (16, 640)),
            ShapeRange((), (), ()),
        ),
    )
    dims = (PackedDim("batch", 1, 16, 1), PackedDim("height", 32, 640, 32))
    return PackageIndex("det", inputs, (), None, dims, (small, large), "float32", {}, True, {}, {})


def test_without_given_shapes_the_shapes_are_opt_of_the_first_profile() -> None:
    assert shapes_of(a_package_index(), {}) == {"image": (2, 3, 64), "mask": (2, 64), "scale": ()}


def test_a_given_shape_decides_its_dims_for_all_inputs() -> None:
    assert shapes_of(a_package_index(), {"mask": (3, 96)})["image"] == (3, 3, 96)


def test_a_given_shape_may_be_outside_of_the_first_profile() -> None:
    assert shapes_of(a_package_index(), {"image": (5, 3, 320)})["mask"] == (5, 320)
    # the given shape decides the batch only: the height is that of the chosen profile
    index = a_package_index()
    inputs = (*index.inputs, PackedTensor("lengths", "int64", (B,)))
    lengths = (ShapeRange((1,), (2,), (4,)), ShapeRange((4,), (8,), (16,)))
    profiles = tuple(
        PackedProfile(profile.name, (*profile.shapes, shapes))
        for profile, shapes in zip(index.profiles, lengths, strict=True)
    )
    index = replace(index, inputs=inputs, profiles=profiles)
    assert shapes_of(index, {"lengths": (3,)})["mask"] == (3, 64)
    assert shapes_of(index, {"lengths": (5,)})["mask"] == (5, 320)


def test_a_named_profile_decides_the_other_dims() -> None:
    index = a_package_index()
    shapes = shapes_of(index, {"mask": (2, 64)}, index.profiles[1], "max")
    assert shapes == {"image": (2, 3, 64), "mask": (2, 64), "scale": ()}
    assert shapes_of(index, {}, index.profiles[1], "max")["image"] == (16, 3, 640)


def test_shapes_outside_of_every_profile_are_returned_unchanged() -> None:
    assert shapes_of(a_package_index(), {"image": (99, 3, 64)})["mask"] == (99, 64)
    assert shapes_of(a_package_index(), {"image": (2, 3)})["image"] == (2, 3)


def test_the_size_of_a_dim_is_the_size_of_its_axis_and_not_the_value_of_its_symbol() -> None:
    # the symbol of height is 2, because height is a multiple of 32
    assert dim_sizes(a_package_index(), {"image": (2, 3, 64)}) == {"batch": 2, "height": 64}
