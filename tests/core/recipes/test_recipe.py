"""Recipes: golden vectors, and the wording of what changed."""

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
from trtbuild.core.recipes.recipe import SCHEMA, Recipe, changes
from trtbuild.core.values.encoding import Value, digest, encode

#: A change here throws every team's cache away: it needs a reason, a bump of the schema or of the step's version, and a
#: line in the CHANGELOG.
GOLDEN = {
    "trace": "c3dbd51d663fd239766c13ebaaff0bf259d60b7345051c84ca6d3e706f12f537",
    "lower": "e42e15f290205c54182b0c07d4e39be044e1850f5a7af43546d41b808d7111ac",
    "partition": "87173209133bdbc9902da3bc10300078a16d733046860e6dbb8aef501abebce4",
    "convert": "d9a0ab1c8d2db8f7ea77c261b86305ec22cd7a884296bcac278130f8690910c1",
    "engine": "b69a4ebc265e0115c47c71d80a8f4b061ce31e3e9ae17e2ee5213143fe35f7af",
    "package": "d50619622a186bdec577f40c57b8c0567f3faa97280a651f4c9ed88a5a1b83f8",
    "weights": "ee334ce59d985f8058c5cc1e68a8cc86ee0c0624d32ee7c2f250e8ef5e085686",
    "verify": "7e394d3c268859e22da541b7c978db1867d314c7f6f9eabbc8866ac82116bb1e",
    "pt2": "3b4230980d2f8848442017ce41356a3de57cb2b6dc3aa468114a77a2b929cc88",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_rule_4_13_golden_keys(name: str) -> None:
    assert recipe_values.one_of_each()[name].key == GOLDEN[name]


def test_every_stage_has_a_golden_key() -> None:
    assert set(GOLDEN) == set(recipe_values.one_of_each()) == set(keys.STEP_VERSIONS)


def test_rule_4_13_golden_keys_without_weights_file_modules_and_torch() -> None:
    build = recipe_values.Build(replace(recipe_values.MODEL, weights=None, partition=PartitionSettings()))
    assert build.trace().key == "b758732faeb48c52553d6ae88112c2d19c45f83eda8ddfa682eacea8338bb13f"
    assert build.recipes()["partition"].key == "f3f7e6b3ee6a32265637ba463bfe4785de2ab1826dc87f486ffbf4252a787103"
    assert (
        keys.trace_with_any_versions(build.trace(versions=None)).key
        == "f98b0e71675b4e24a51b2fec87e4d719548ab1afc230b77d193368b4032b6720"
    )


def test_rule_4_13_golden_encoding() -> None:
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


def test_rule_4_1_the_key_is_sha256_over_domain_schema_and_encoding() -> None:
    recipe = Recipe("lower", 3, (("graph", "a" * 64), ("precision", "float32")))
    value: Value = ["lower", 3, [["graph", "a" * 64], ["precision", "float32"]]]
    assert recipe.key == hashlib.sha256(encode(SCHEMA) + encode(value)).hexdigest() == digest(SCHEMA, value)


def a(*parts: tuple[str, Value], version: int = 1, stage: str = "engine") -> Recipe:
    return Recipe(stage, version, parts)


def test_stage_version_names_and_order_of_parts_are_in_the_key() -> None:
    recipes = [
        a(("x", 1), ("y", 2)),
        a(("y", 2), ("x", 1)),
        a(("x", 2), ("y", 1)),
        a(("x", 1), ("z", 2)),
        a(("x", 1)),
        a(("x", 1), ("y", 2), version=2),
        a(("x", 1), ("y", 2), stage="lower"),
        a(),
    ]
    assert len({recipe.key for recipe in recipes}) == len(recipes)


def test_refuses_a_part_that_stands_twice() -> None:
    with pytest.raises(ValueError, match="twice"):
        _ = a(("x", 1), ("x", 2)).key


RECIPES = st.builds(
    lambda stage, version, parts: Recipe(stage, version, tuple(parts.items())),
    st.text("abc", max_size=3),
    st.integers(0, 3),
    st.dictionaries(st.text("abc", max_size=3), JSON_VALUES, max_size=4),
)


@given(RECIPES)
def test_a_recipe_survives_json(recipe: Recipe) -> None:
    read = Recipe.from_json(json.loads(json.dumps(recipe.to_json())))
    assert read.key == recipe.key and read.same_as(recipe)


@given(RECIPES, RECIPES)
def test_same_as_is_equality_of_keys(one: Recipe, other: Recipe) -> None:
    assert one.same_as(other) == (one.key == other.key)
    assert one.same_as(one)


@given(RECIPES, RECIPES)
def test_different_keys_have_a_listed_change(one: Recipe, other: Recipe) -> None:
    other = Recipe(one.stage, other.version, other.parts)
    found = changes(one, other)
    assert bool(found) == (one.key != other.key)
    assert all(change.was != change.now for change in found)


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


def shown(was: Recipe, now: Recipe) -> list[tuple[str, str, str]]:
    return [(change.part, change.was, change.now) for change in changes(was, now)]


def test_the_smallest_changed_part_is_listed() -> None:
    was = a(("settings", {"level": 3, "tf32": True}), ("profiles", {"0": {"i0": {"opt": [4, 3]}}}))
    now = a(("settings", {"level": 4, "tf32": True}), ("profiles", {"0": {"i0": {"opt": [5, 3]}}}))
    assert shown(was, now) == [("settings.level", "3", "4"), ("profiles.0.i0.opt[0]", "4", "5")]


def test_lists_of_two_lengths_are_shown_whole() -> None:
    assert shown(a(("x", [1, 2])), a(("x", [1]))) == [("x", "[1, 2]", "[1]")]


def test_types_are_shown_where_the_text_is_equal() -> None:
    assert shown(a(("x", 1)), a(("x", "1"))) == [("x", "1 (int)", "1 (str)")]
    assert shown(a(("x", True)), a(("x", "true"))) == [("x", "true (bool)", "true (str)")]
    assert shown(a(("x", None)), a(("x", "none"))) == [("x", "none (NoneType)", "none (str)")]


def test_the_exact_values_are_shown_where_text_and_types_are_equal() -> None:
    assert shown(a(("x", ["a, b"])), a(("x", ["a", "b"]))) == [("x", '["a, b"]', '["a", "b"]')]
    other = struct.unpack(">d", bytes.fromhex("7ff8000000000001"))[0]
    ((_, was, now),) = shown(a(("x", math.nan)), a(("x", other)))
    assert "7ff8000000000000" in was and "7ff8000000000001" in now


def test_floats_are_compared_by_type_and_bits() -> None:
    assert shown(a(("x", 0.0)), a(("x", -0.0))) == [("x", "0.0", "-0.0")]
    assert shown(a(("x", 1)), a(("x", 1.0))) == [("x", "1", "1.0")]


def test_added_and_removed_parts_are_listed() -> None:
    was, now = a(("x", 1), ("old", "o")), a(("new", "n"), ("x", 1))
    assert shown(was, now) == [("new", "(absent)", "n"), ("old", "o", "(absent)")]
    assert shown(a(("m", {"k": 1})), a(("m", {}))) == [("m.k", "1", "(absent)")]


def test_a_bumped_step_and_another_order_are_listed() -> None:
    assert shown(a(("x", 1)), a(("x", 1), version=2)) == [("step version", "1", "2")]
    assert shown(a(("x", 1), ("y", 2)), a(("y", 2), ("x", 1))) == [("order of parts", "x, y", "y, x")]


@given(RECIPES)
def test_the_text_is_the_json_form(recipe: Recipe) -> None:
    assert recipe.text == json.dumps(recipe.to_json(), sort_keys=True, separators=(",", ":"))


@given(RECIPES, st.integers(0, 4))
def test_a_recipe_that_is_made_bit_by_bit_has_the_same_key(recipe: Recipe, count: int) -> None:
    start = Recipe(recipe.stage, recipe.version, recipe.parts[:count])
    assert start.followed_by(recipe.parts[count:]).key == recipe.key
    assert start.followed_by(recipe.parts[count:]) == recipe
