"""Recipes: golden keys, JSON, and the changes between two recipes."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core import recipe_values
from tests.core.values.test_encoding import JSON_VALUES
from trtbuild.core.model.spec import PartitionSettings
from trtbuild.core.recipes import keys
from trtbuild.core.recipes.lookup_recipes import with_any_versions
from trtbuild.core.recipes.recipe import SCHEMA, Recipe, changes
from trtbuild.core.values.encoding import Value, digest, encode

#: Stage → key. A changed key makes every team's cache useless for that stage. It needs a reason, a new version of the
#: schema or of the step, and a line in the CHANGELOG.
GOLDEN = {
    "calibrate": "f2eff2d4c149e54ac8b0980ac739789dd7a57e0f9d2d0ba25a080f419d3645ab",
    "trace": "b3cbcf7422dbf5a0c82399beb9201ebcca7e4cb425566cc5a2cb27c3a34703ad",
    "lower": "04e3dcb384d58e0eeb20125c62e6338722a46fe7f86c4cbcb6f62e0abc745b04",
    "partition": "7ada65983320989ce5a8af4d04fd2f4d331313649c90fd2e1f5539ad5705c363",
    "convert": "d6d85009ca9b723b7c3ccd643959fc6503e8c18afaa930ae006f3d1225a1a82b",
    "engine": "b69a4ebc265e0115c47c71d80a8f4b061ce31e3e9ae17e2ee5213143fe35f7af",
    "package": "d50619622a186bdec577f40c57b8c0567f3faa97280a651f4c9ed88a5a1b83f8",
    "weights": "ee334ce59d985f8058c5cc1e68a8cc86ee0c0624d32ee7c2f250e8ef5e085686",
    "verify": "4b622c791fb9b4ad029e916362ca3b871ac2a7798e880131c98592b88c666857",
    "pt2": "2d74f03b50a0316784e238e33b1e5f53023f970fb112ed3239a7a52ebaee3971",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_keys(name: str) -> None:
    assert recipe_values.recipe_of_each_stage()[name].key == GOLDEN[name]


def test_every_stage_has_a_golden_key() -> None:
    assert set(GOLDEN) == set(recipe_values.recipe_of_each_stage()) == set(keys.STEP_VERSIONS)


def test_golden_keys_without_weights_file_modules_and_torch() -> None:
    build = recipe_values.Build(replace(recipe_values.MODEL, weights=None, partition=PartitionSettings()))
    assert build.trace().key == "16ee1f328549ef10352b3ebabe8649d39dea9459871fbbc51231d577a6f26cea"
    assert build.recipes()["partition"].key == "fd1ea90f0411661cdd0c2c7c0be79c853956be58a9b5fd81b3080ace55a61176"
    assert (
        with_any_versions(build.trace(versions=None)).key
        == "f7738933f92ae36c25442f4f11d873ffe1316a97bfdfbe57b22643b844886b5a"
    )


def test_golden_encoding() -> None:
    value: Value = {
        "text": ["", "é", "\udcff"],
        "numbers": [0, -1, 2**70, 0.0, -0.0, 1.5, math.inf],
        "nan": struct.unpack(">d", bytes.fromhex("7ff8000000000001"))[0],
        "others": [None, True, False, b"\x00\xff", [], {}],
    }
    assert (
        hashlib.sha256(encode(value)).hexdigest() == "d66263d8ce3930e6887a11dba75dc6e0b33d0d03d5a75420d7ff1a56a6b68149"
    )
    assert encode(["a", 1, None]).hex() == "4c0000000000000003" + "53000000000000000161" + "49000000000000000131" + "4e"


def test_the_key_is_the_sha256_of_the_encoded_schema_and_recipe() -> None:
    recipe = Recipe("lower", 3, (("graph", "a" * 64), ("precision", "float32")))
    value: Value = ["lower", 3, [["graph", "a" * 64], ["precision", "float32"]]]
    assert recipe.key == hashlib.sha256(encode(SCHEMA) + encode(value)).hexdigest() == digest(SCHEMA, value)


def a_recipe(*parts: tuple[str, Value], version: int = 1, stage: str = "engine") -> Recipe:
    return Recipe(stage, version, parts)


def test_the_stage_the_version_and_the_names_and_order_of_parts_are_in_the_key() -> None:
    recipes = [
        a_recipe(("x", 1), ("y", 2)),
        a_recipe(("y", 2), ("x", 1)),
        a_recipe(("x", 2), ("y", 1)),
        a_recipe(("x", 1), ("z", 2)),
        a_recipe(("x", 1)),
        a_recipe(("x", 1), ("y", 2), version=2),
        a_recipe(("x", 1), ("y", 2), stage="lower"),
        a_recipe(),
    ]
    assert len({recipe.key for recipe in recipes}) == len(recipes)


def test_rejects_a_part_that_occurs_twice() -> None:
    with pytest.raises(ValueError, match="twice"):
        _ = a_recipe(("x", 1), ("x", 2)).key


RECIPES = st.builds(
    lambda stage, version, parts: Recipe(stage, version, tuple(parts.items())),
    st.text("abc", max_size=3),
    st.integers(0, 3),
    st.dictionaries(st.text("abc", max_size=3), JSON_VALUES, max_size=4),
)


@given(RECIPES)
def test_a_recipe_is_read_back_from_json(recipe: Recipe) -> None:
    decoded = Recipe.from_json(json.loads(json.dumps(recipe.to_json())))
    assert decoded.key == recipe.key and decoded.same_as(recipe)


@given(RECIPES, RECIPES)
def test_same_as_is_equality_of_keys(first: Recipe, second: Recipe) -> None:
    assert first.same_as(second) == (first.key == second.key)
    assert first.same_as(first)


@given(RECIPES, RECIPES)
def test_recipes_with_different_keys_have_a_listed_change(first: Recipe, second: Recipe) -> None:
    second = Recipe(first.stage, second.version, second.parts)
    listed = changes(first, second)
    assert bool(listed) == (first.key != second.key)
    assert all(change.was != change.now for change in listed)


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"stage": "x", "version": 1},
        {"stage": "x", "version": "1", "parts": []},
        {"stage": "x", "version": True, "parts": []},
        {"stage": "x", "version": 1.0, "parts": []},
        {"stage": 1, "version": 1, "parts": []},
        {"stage": "x", "version": 1, "parts": [["a"]]},
        {"stage": "x", "version": 1, "parts": [[1, 2]]},
        {"stage": "x", "version": 1, "parts": [["a", 1.5]]},
        {"stage": "x", "version": 1, "parts": {"a": 1}},
    ],
    ids=repr,
)
def test_rejects_invalid_recipes(data: object) -> None:
    with pytest.raises(ValueError):
        Recipe.from_json(data)


def change_texts(before: Recipe, after: Recipe) -> list[tuple[str, str, str]]:
    return [(change.part, change.was, change.now) for change in changes(before, after)]


def test_the_smallest_changed_part_is_listed() -> None:
    before = a_recipe(("settings", {"level": 3, "tf32": True}), ("profiles", {"0": {"i0": {"opt": [4, 3]}}}))
    after = a_recipe(("settings", {"level": 4, "tf32": True}), ("profiles", {"0": {"i0": {"opt": [5, 3]}}}))
    assert change_texts(before, after) == [("settings.level", "3", "4"), ("profiles.0.i0.opt[0]", "4", "5")]


def test_lists_of_different_lengths_are_shown_completely() -> None:
    assert change_texts(a_recipe(("x", [1, 2])), a_recipe(("x", [1]))) == [("x", "[1, 2]", "[1]")]


def test_types_are_shown_if_the_texts_are_equal() -> None:
    assert change_texts(a_recipe(("x", 1)), a_recipe(("x", "1"))) == [("x", "1 (int)", "1 (str)")]
    assert change_texts(a_recipe(("x", True)), a_recipe(("x", "true"))) == [("x", "true (bool)", "true (str)")]
    assert change_texts(a_recipe(("x", None)), a_recipe(("x", "none"))) == [("x", "none (NoneType)", "none (str)")]


def test_the_exact_values_are_shown_if_texts_and_types_are_equal() -> None:
    assert change_texts(a_recipe(("x", ["a, b"])), a_recipe(("x", ["a", "b"]))) == [("x", '["a, b"]', '["a", "b"]')]
    other = struct.unpack(">d", bytes.fromhex("7ff8000000000001"))[0]
    ((_, was, now),) = change_texts(a_recipe(("x", math.nan)), a_recipe(("x", other)))
    assert "7ff8000000000000" in was and "7ff8000000000001" in now


def test_floats_are_compared_by_type_and_bits() -> None:
    assert change_texts(a_recipe(("x", 0.0)), a_recipe(("x", -0.0))) == [("x", "0.0", "-0.0")]
    assert change_texts(a_recipe(("x", 1)), a_recipe(("x", 1.0))) == [("x", "1", "1.0")]


def test_added_and_removed_parts_are_listed() -> None:
    before, after = a_recipe(("x", 1), ("old", "o")), a_recipe(("new", "n"), ("x", 1))
    assert change_texts(before, after) == [("new", "(absent)", "n"), ("old", "o", "(absent)")]
    assert change_texts(a_recipe(("m", {"k": 1})), a_recipe(("m", {}))) == [("m.k", "1", "(absent)")]


def test_a_new_step_version_and_another_order_are_listed() -> None:
    assert change_texts(a_recipe(("x", 1)), a_recipe(("x", 1), version=2)) == [("step version", "1", "2")]
    assert change_texts(a_recipe(("x", 1), ("y", 2)), a_recipe(("y", 2), ("x", 1))) == [
        ("order of parts", "x, y", "y, x")
    ]


@given(RECIPES)
def test_the_text_is_the_json_form(recipe: Recipe) -> None:
    assert recipe.text == json.dumps(recipe.to_json(), sort_keys=True, separators=(",", ":"))


@given(RECIPES, st.integers(0, 4))
def test_a_recipe_that_is_built_in_two_pieces_has_the_same_key(recipe: Recipe, count: int) -> None:
    start = Recipe(recipe.stage, recipe.version, recipe.parts[:count])
    assert start.followed_by(recipe.parts[count:]).key == recipe.key
    assert start.followed_by(recipe.parts[count:]) == recipe
