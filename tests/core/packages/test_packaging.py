"""The contents of a package: its recipe, its index, and the table of names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.recipe_values import INTERFACE, MODEL, PARTITIONS, WEIGHTS, A, B, Build, C, D, shapes_of
from trtbuild.core.engines.binding import WeightSlot
from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.packages.contents import PackageContents, PackageEngine, ToolchainPartitions
from trtbuild.core.packages.name_table import name_table
from trtbuild.core.packages.package_index import SCHEMA
from trtbuild.core.packages.package_indexing import package_index
from trtbuild.core.packages.package_reading import read_index
from trtbuild.core.packages.package_recipe import package_recipe
from trtbuild.core.packages.package_writing import index_to_bytes, index_to_json
from trtbuild.core.partition.partitions import Partitions
from trtbuild.core.recipes.record import Output

#: The file with the module and the operator of each ONNX node.
NAMES = Output(A, 30)


def contents(**changes: Any) -> PackageContents:
    return replace(Build().contents(), **changes)


def index_of(**changes: Any) -> dict[str, Any]:
    """Return the JSON of a package's index."""
    return index_to_json(package_index(contents(**changes), NAMES))


def test_the_index_has_the_fields_that_a_loader_needs() -> None:
    index = index_of()
    assert list(index) == [
        "schema",
        "model",
        "inputs",
        "outputs",
        "output_tree",
        "dims",
        "profiles",
        "precision",
        "targets",
        "reference",
        "weights",
        "files",
    ]
    assert (index["schema"], index["model"], index["precision"]) == (SCHEMA, "vit", "float16")
    assert index["dims"] == [{"name": "batch", "min": 1, "max": 8, "multiple_of": 1}]
    assert index["profiles"][1] == {
        "name": "batch",
        "shapes": {
            "image": {"min": [2, 3], "opt": [4, 3], "max": [8, 3]},
            "mask": {"min": [2], "opt": [4], "max": [8]},
        },
    }
    hopper = index["targets"]["hopper"]
    assert {name: hopper[name] for name in ("sm", "toolchain", "version", "compatibility", "platform")} == {
        "sm": 90,
        "toolchain": "tensorrt",
        "version": "1.4.0.76",  # the resolved version, not the version in the manifest
        "compatibility": "same_compute_capability",
        "platform": "windows-x86_64",
    }
    assert [*hopper["sms"]] == [90] and hopper["version_compatible"] is False
    assert hopper["engines"] == {"encoder.0": "engines/hopper/encoder.0.plan"}
    assert hopper["layers"] == {"encoder.0": "engines/hopper/encoder.0.layers.json"}
    assert [part["name"] for part in hopper["partitions"]["partitions"]] == ["encoder.0", "p1"]
    assert hopper["partitions"]["programs"] == {B: D}


def test_inputs_have_the_names_of_the_manifest() -> None:
    inputs = (replace(MODEL.inputs[0], name="picture"), MODEL.inputs[1])
    profiles = tuple(
        replace(profile, shapes=(("picture", profile.shapes[0][1]), *profile.shapes[1:])) for profile in MODEL.profiles
    )
    inputs_of_index = index_of(model=replace(MODEL, inputs=inputs, profiles=profiles))["inputs"]
    assert [(entry["name"], entry["keyword"], entry["dtype"]) for entry in inputs_of_index] == [
        ("picture", False, "float32"),
        ("mask", True, "bool"),
    ]


def test_the_index_lists_every_file_with_size_and_digest() -> None:
    assert index_of()["files"] == {
        "engines/ada/encoder.0.layers.json": {"sha256": C, "size": 20},
        "engines/ada/encoder.0.plan": {"sha256": B, "size": 1000},
        "engines/hopper/encoder.0.layers.json": {"sha256": C, "size": 20},
        "engines/hopper/encoder.0.plan": {"sha256": B, "size": 1000},
        "names.json": {"sha256": A, "size": 30},
        f"torch/{D[:32]}.pt2": {"sha256": D, "size": 100},
        f"weights/{B[:32]}": {"sha256": B, "size": 24},
    }


def test_programs_of_one_graph_that_are_stored_differently_are_two_files() -> None:
    by_target = {
        "ada": ToolchainPartitions(PARTITIONS, {B: Output(D, 100)}),
        "hopper": ToolchainPartitions(PARTITIONS, {B: Output(C, 101)}),
    }
    files = index_of(partitions_by_target=by_target)["files"]
    assert files[f"torch/{D[:32]}.pt2"] == {"sha256": D, "size": 100}
    assert files[f"torch/{C[:32]}.pt2"] == {"sha256": C, "size": 101}


def test_weights_are_those_of_torch_partitions_and_of_outputs() -> None:
    (weight,) = index_of()["weights"].values()
    assert weight == {"name": "w", "dtype": "float32", "shape": (2, 3), "sha256": B}
    engine_only = Partitions(PARTITIONS.partitions[:1], ("encoder.0:0", "weight:1"))
    index = index_of(partitions_by_target={name: ToolchainPartitions(engine_only, {}) for name in ("ada", "hopper")})
    assert list(index["weights"]) == ["1"]
    reads_weight = replace(PARTITIONS.partitions[0], inputs=(("weight:0", PARTITIONS.partitions[0].inputs[0][1]),))
    index = index_of(
        partitions_by_target={
            name: ToolchainPartitions(Partitions((reads_weight,), ("encoder.0:0",)), {}) for name in ("ada", "hopper")
        }
    )
    assert list(index["weights"]) == ["0"]


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("bool", 6),
        ("float8_e4m3fn", 6),
        ("bfloat16", 12),
        ("uint16", 12),
        ("float32", 24),
        ("int64", 48),
        ("complex128", 96),
    ],
)
def test_the_size_of_a_weight_follows_from_its_dtype(dtype: str, size: int) -> None:
    index = index_of(weights=(Weight(dtype, (2, 3), B), WEIGHTS[1]))
    assert index["files"][f"weights/{B[:32]}"]["size"] == size


def test_with_a_reference_the_index_has_the_weights_of_all_partitions() -> None:
    index = index_of(model=replace(MODEL, reference=True))
    assert index["reference"] is True and list(index["weights"]) == ["0", "1"]
    assert index_of()["reference"] is False


@pytest.mark.parametrize("reference", [False, True])
def test_a_written_index_is_read_back(reference: bool) -> None:
    by_target = {
        name: ToolchainPartitions(PARTITIONS, {A: Output(B, 50), B: Output(D, 100)}) for name in ("ada", "hopper")
    }
    index = package_index(contents(model=replace(MODEL, reference=reference), partitions_by_target=by_target), NAMES)
    data = index_to_bytes(index)
    read = read_index(data)
    assert index_to_bytes(read) == data
    assert (read.inputs, read.outputs, read.dims) == (index.inputs, index.outputs, index.dims)
    assert (read.profiles, read.weights, read.files) == (index.profiles, index.weights, index.files)
    assert read.targets.keys() == index.targets.keys()


def test_blobs_are_all_programs_and_weights() -> None:
    assert contents().blobs() == {D: "program", B: "weight"}


def test_an_index_needs_the_plan_and_the_layers_of_an_engine() -> None:
    with pytest.raises(AssertionError):
        package_index(contents(engines=[PackageEngine("encoder.0", "ada", A)]), NAMES)
    with pytest.raises(AssertionError):
        package_index(contents(engines=[PackageEngine("encoder.0", "ada", A, Output(B, 1000))]), NAMES)


# -- the recipe


def test_the_recipe_has_the_key_of_an_engine_not_its_bytes() -> None:
    other = [PackageEngine("encoder.0", target.name, A, Output(C, 999), Output(C, 20)) for target in MODEL.targets]
    assert package_recipe(contents(engines=other)).key == package_recipe(contents()).key
    keyed = [PackageEngine("encoder.0", target.name, D, Output(B, 1000), Output(C, 20)) for target in MODEL.targets]
    assert package_recipe(contents(engines=keyed)).key != package_recipe(contents()).key


RENAMED_DIM = shapes_of(replace(MODEL, dims=(replace(MODEL.dims[0], name="n"),)))

CHANGES: dict[str, dict[str, Any]] = {
    "model": {"model": replace(MODEL, name="other")},
    "inputs": {"interface": replace(INTERFACE, inputs=({**INTERFACE.inputs[0], "dtype": "int8"}, INTERFACE.inputs[1]))},
    "dims": {"shapes": RENAMED_DIM},
    "profiles": {"model": replace(MODEL, profiles=(replace(MODEL.profiles[0], name="one"), MODEL.profiles[1]))},
    "targets": {"model": replace(MODEL, targets=(replace(MODEL.targets[0], platform="other"), MODEL.targets[1]))},
    "precision": {"model": replace(MODEL, precision="bfloat16")},
    "weights": {"weights": (replace(WEIGHTS[0], sha256=C), WEIGHTS[1])},
    "names of weights": {
        "interface": replace(INTERFACE, slots=(WeightSlot("v", "float32", (2, 3), persistent=True), INTERFACE.slots[1]))
    },
    "modules": {"modules": Output(D, 10)},
    "origins": {"origins": {A: D}},
    "outputs": {"interface": replace(INTERFACE, outputs=({"name": "y"},))},
    "output tree": {"interface": replace(INTERFACE, output_tree={"kind": "list", "items": []})},
    "programs": {
        "partitions_by_target": {
            name: ToolchainPartitions(PARTITIONS, {B: Output(C, 100)}) for name in ("ada", "hopper")
        }
    },
    "partitions": {
        "partitions_by_target": {
            name: ToolchainPartitions(Partitions(PARTITIONS.partitions, ("p1:1",)), {B: Output(D, 100)})
            for name in ("ada", "hopper")
        }
    },
    "reference": {"model": replace(MODEL, reference=True)},
    "sms": {"sms": {"ada": (89, 90), "hopper": (90,)}},
    "toolchains": {"toolchains": {"ada": "1.4.0.77", "hopper": "1.4.0.76"}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_recipe_changes_with_each_of_these_contents(change: str) -> None:
    assert package_recipe(contents(**CHANGES[change])).key != package_recipe(contents()).key


def test_a_package_with_numbers_names_its_format_in_its_recipe() -> None:
    """An older version of trtbuild would write such a package in the first format, so this version uses another key."""
    number = {"kind": "tuple", "items": [INTERFACE.output_tree, {"kind": "number", "type": "int", "index": 0}]}
    recipe = package_recipe(contents(interface=replace(INTERFACE, output_tree=number)))
    assert dict(recipe.parts)["format"] == "trtbuild.package/2"
    assert "format" not in dict(package_recipe(contents()).parts)


def test_models_with_equal_recipes_have_equal_indexes() -> None:
    """If a value of the index were missing in the recipe, a build could take an index with an old value from the cache."""
    index = index_to_bytes(package_index(contents(), NAMES))
    changes: list[dict[str, Any]] = [{"origin": replace(MODEL.origin, line=99)}, {"outputs": ()}, {"places": {}}]
    for change in changes:
        other = contents(model=replace(MODEL, **change))
        assert package_recipe(other).same_as(package_recipe(contents()))
        assert index_to_bytes(package_index(other, NAMES)) == index


# -- the table of names


def test_names_of_nodes_lead_to_modules_and_operators() -> None:
    partitions = ToolchainPartitions(PARTITIONS, {})
    modules = [["encoder.0.a", "aten.mm"], ["encoder.0.b", "aten.add"], ["nms", "aten.nms"]]
    # the partition step added call 2 of the partition, so node n2 has no module, and is not in the table
    origins = {A: [["n0", 1], ["n1", 0], ["n2", 2]]}
    assert name_table(partitions, modules, origins) == {
        "encoder.0": {
            "n0": ["encoder.0.b", "aten.add"],
            "n1": ["encoder.0.a", "aten.mm"],
        }
    }
    assert name_table(partitions, modules, {}) == {"encoder.0": {}}
