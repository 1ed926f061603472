"""Record documents: a written record is read back, and a damaged document is rejected."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.recipes.test_recipe import RECIPES
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import SCHEMA, Output, Record
from trtbuild.core.values.encoding import is_digest

A, B = "a" * 64, "b" * 64
RECORD = Record(
    Recipe("engine", 1, (("onnx", A), ("scale", 0.5))),
    {"plan": Output(A, 12), "layers": Output(B, 0)},
    {"builder": "ann@host", "statistics": {"build_s": 1.5}},
)

OUTPUTS = st.dictionaries(
    st.text("abc:", max_size=4),
    st.builds(Output, st.text("0123456789abcdef", min_size=64, max_size=64), st.integers(0, 2**60)),
    max_size=3,
)


@given(RECIPES, OUTPUTS)
def test_a_record_is_read_back_from_its_document(recipe: Recipe, outputs: dict[str, Output]) -> None:
    record = Record.from_bytes(Record(recipe, outputs, {"who": "ann"}).to_bytes())
    assert record.recipe.key == recipe.key
    assert (record.outputs, record.provenance) == (outputs, {"who": "ann"})


@given(RECIPES, RECIPES)
def test_the_expected_recipe_does_not_change_the_record_that_is_read(recipe: Recipe, expected: Recipe) -> None:
    data = Record(recipe, {"plan": Output(A, 12)}, {"who": "ann"}).to_bytes()
    assert Record.from_bytes(data, recipe).recipe is recipe
    assert Record.from_bytes(data, expected).recipe.same_as(recipe)


@pytest.mark.parametrize("member", ["outputs", "provenance"])
def test_a_recipe_in_another_field_of_the_document_is_not_taken_as_its_recipe(member: str) -> None:
    """The recipe of the document differs from the expected recipe, which is in another field."""
    document = json.loads(Record(Recipe("engine", 1, (("onnx", B),)), {}).to_bytes())
    inner = json.dumps({"recipe": RECORD.recipe.to_json(), "schema": SCHEMA}, separators=(",", ":"), sort_keys=True)
    document["key"] = RECORD.recipe.key
    document["zzz"] = json.loads(inner)
    data = json.dumps(document, separators=(",", ":")).encode()
    with pytest.raises(ValueError, match="key"):
        Record.from_bytes(data, RECORD.recipe)
    document[member] = {"a": inner}
    with pytest.raises(ValueError, match=r"key|output"):
        Record.from_bytes(json.dumps(document, separators=(",", ":")).encode(), RECORD.recipe)


def test_a_document_is_canonical() -> None:
    data = RECORD.to_bytes()
    assert data == json.dumps(json.loads(data), sort_keys=True, separators=(",", ":")).encode()
    reordered = Record(
        RECORD.recipe, dict(reversed([*RECORD.outputs.items()])), dict(reversed([*RECORD.provenance.items()]))
    )
    assert reordered.to_bytes() == data == Record.from_bytes(data).to_bytes()


def test_a_document_names_its_schema_and_key() -> None:
    document = json.loads(RECORD.to_bytes())
    assert set(document) == {"schema", "key", "recipe", "outputs", "provenance"}
    assert (document["schema"], document["key"]) == (SCHEMA, RECORD.recipe.key)


def test_provenance_is_not_in_the_key() -> None:
    assert Record(RECORD.recipe, RECORD.outputs, {}).recipe.key == RECORD.recipe.key


DAMAGE: dict[str, Callable[[dict[str, Any]], object]] = {
    "a newer schema": lambda d: d.update(schema="trtbuild.record/2"),
    "no schema": lambda d: d.pop("schema"),
    "another key": lambda d: d.update(key=A),
    "no key": lambda d: d.pop("key"),
    "another recipe": lambda d: d["recipe"]["parts"][0].__setitem__(1, B),
    "a missing part": lambda d: d["recipe"]["parts"].pop(),
    "another version": lambda d: d["recipe"].update(version=2),
    "a part that occurs twice": lambda d: d["recipe"]["parts"].append(d["recipe"]["parts"][0]),
    "no recipe": lambda d: d.pop("recipe"),
    "a float in the recipe": lambda d: d["recipe"]["parts"][1].__setitem__(1, 0.5),
    "half a surrogate pair": lambda d: d["recipe"]["parts"][0].__setitem__(1, "\ud800"),
    "outputs as a list": lambda d: d.update(outputs=[["plan", {"sha256": A, "size": 1}]]),
    "no outputs": lambda d: d.pop("outputs"),
    "an output as text": lambda d: d["outputs"].update(plan=A),
    "a digest in capitals": lambda d: d["outputs"]["plan"].update(sha256="A" * 64),
    "a digest that is too short": lambda d: d["outputs"]["plan"].update(sha256="a" * 63),
    "a digest with a line end": lambda d: d["outputs"]["plan"].update(sha256="a" * 64 + "\n"),
    "a digest as a number": lambda d: d["outputs"]["plan"].update(sha256=1),
    "a path in place of a digest": lambda d: d["outputs"]["plan"].update(sha256="../" * 21 + "a"),
    "no size": lambda d: d["outputs"]["plan"].pop("size"),
    "a negative size": lambda d: d["outputs"]["plan"].update(size=-1),
    "a size that is true": lambda d: d["outputs"]["plan"].update(size=True),
    "a size that is a float": lambda d: d["outputs"]["plan"].update(size=1.0),
    "provenance as a list": lambda d: d.update(provenance=[]),
    "no provenance": lambda d: d.pop("provenance"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_rejects_a_damaged_document(damage: str) -> None:
    document = json.loads(RECORD.to_bytes())
    DAMAGE[damage](document)
    with pytest.raises(ValueError):
        Record.from_bytes(json.dumps(document).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"\xff\xfe", b"{", b"[" * 100_000, RECORD.to_bytes()[:-1]])
def test_rejects_invalid_documents(data: bytes) -> None:
    with pytest.raises(ValueError):
        Record.from_bytes(data)


@given(st.binary(max_size=64))
def test_rejects_random_bytes(data: bytes) -> None:
    with pytest.raises(ValueError):
        Record.from_bytes(data)


def test_a_digest_is_64_lower_case_hex_digits() -> None:
    assert is_digest(A)
    assert not any(map(is_digest, [None, 1, b"a" * 64, "a" * 65, "g" * 64, "A" * 64, "", A + "\n"]))


@pytest.mark.parametrize("depth", [700, 100_000])  # 700 is too deep for the recipe's key, 100_000 for the JSON parser
def test_a_record_that_is_nested_too_deeply_is_rejected(depth: int) -> None:
    value = "[" * depth + "]" * depth
    recipe = f'{{"stage":"x","version":1,"parts":[["a",{value}]]}}'
    document = f'{{"schema":"{SCHEMA}","key":"{A}","recipe":{recipe},"outputs":{{}},"provenance":{{}}}}'
    with pytest.raises(ValueError, match="nested too deeply"):
        Record.from_bytes(document.encode())
