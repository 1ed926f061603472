"""The choice of the nearest record for a step that was never built here, and the parts that differ."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trtbuild.core.planning.graph import Reason, Step
from trtbuild.core.recipes.recipe import Change, Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.answers import nearest
from trtbuild.driver.answers.nearest import nearest_records
from trtbuild.store.local.local import LocalStore


def engine_recipe(target: str = "ada", **parts: int) -> Recipe:
    values = {"onnx": 1, "weights": 1, "profiles": 1, "settings": 1, **parts}
    return Recipe("engine", 1, (*values.items(), ("target", target)))


def engine_step(recipe: Recipe, code: str = "new") -> Step:
    return Step("net/engine/model@ada", "net", "engine", "run", Reason(code, ""), "ada", recipe)  # type: ignore[arg-type]


def put_record(store: LocalStore, recipe: Recipe, age_s: int = 0) -> str:
    """Store a record that was last used `age_s` seconds before the newest record. Return its key."""
    store.put_record(Record(recipe, {"plan": store.put_bytes(b"plan")}, {"builder": "ci@runner"}))
    os.utime(store.entries.layout.entry_path("ac", recipe.key), (1_000_000 - age_s, 1_000_000 - age_s))
    return recipe.key


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "cache")


def test_the_record_that_shares_the_most_parts_is_described(store: LocalStore) -> None:
    put_record(store, engine_recipe(onnx=2, weights=2))
    key = put_record(store, engine_recipe(settings=2), age_s=60)
    (found,) = nearest_records(store, [engine_step(engine_recipe())]).values()
    assert (found.key, found.builder, found.finished) == (key, "ci@runner", None)
    assert found.changed == [Change("settings", "2", "1")]


def test_the_newest_of_the_records_that_share_the_most_parts_is_chosen(store: LocalStore) -> None:
    put_record(store, engine_recipe(settings=2), age_s=60)
    key = put_record(store, engine_recipe(profiles=2))
    assert nearest_records(store, [engine_step(engine_recipe())])["net/engine/model@ada"].key == key


@pytest.mark.parametrize(
    "other",
    [
        engine_recipe("blackwell"),
        engine_recipe(onnx=2, weights=2, profiles=2),
        Recipe("convert", 1, engine_recipe().parts),
    ],
)
def test_a_record_of_another_target_or_stage_or_with_few_equal_parts_does_not_count(
    store: LocalStore, other: Recipe
) -> None:
    put_record(store, other)
    assert not nearest_records(store, [engine_step(engine_recipe())])


def test_a_step_that_was_built_here_before_is_not_compared(store: LocalStore) -> None:
    put_record(store, engine_recipe(settings=2))
    assert not nearest_records(store, [engine_step(engine_recipe(), "evicted")])


def test_damaged_entries_are_left_out_and_the_number_of_read_entries_is_limited(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = put_record(store, engine_recipe(profiles=2))
    old = put_record(store, engine_recipe(settings=2), age_s=60)
    Path(store.entries.layout.entry_path("ac", damaged)).write_bytes(b"\xff" * 40)
    store.begin_read_only()  # as `why` does: a lookup does not make an entry newer
    step = engine_step(engine_recipe())
    assert nearest_records(store, [step])[step.id].key == old
    monkeypatch.setattr(nearest, "MOST_ENTRIES", 1)
    assert not nearest_records(store, [step])


def test_characters_that_control_a_terminal_are_replaced(store: LocalStore) -> None:
    recipe = Recipe("engine", 1, (*engine_recipe().parts, ("name", "\x1b[2J")))
    store.put_record(Record(recipe, {"plan": store.put_bytes(b"plan")}, {"builder": "\x1b]0;x\x07"}))
    (found,) = nearest_records(store, [engine_step(engine_recipe())]).values()
    assert found.builder == "?]0;x?"
    assert found.changed == [Change("name", "?[2J", "(absent)")]


def test_a_missing_cache_has_no_nearest_record(store: LocalStore) -> None:
    assert not nearest_records(store, [engine_step(engine_recipe())])
