"""Traces that were made elsewhere, by the name that a lock file has for them and by their files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.conftest import VERSIONS, FakeWorld, a_model
from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.spec import Model
from trtbuild.core.planning.graph import Step
from trtbuild.core.planning.lookups import Facts, LockedTrace
from trtbuild.core.recipes.recipe import Recipe


class LockedWorld(FakeWorld):
    """A world whose machine is not the one of the lock."""

    locked: LockedTrace | None = None

    def facts(self, model: Model) -> Facts:
        return replace(super().facts(model), locked=self.locked)


@pytest.fixture
def world() -> LockedWorld:
    """Built, locked, and then moved to a machine with another torch."""
    world = LockedWorld()
    world.build(a_model())
    world.locked = LockedTrace(world.plan(a_model()).steps["net/trace"].key, VERSIONS)
    world.versions = None
    world.distributions["timm"] = "2.0"
    return world


def trace(world: FakeWorld, model: Model | None = None) -> Step:
    return world.plan(model or a_model()).steps["net/trace"]


def drop(world: FakeWorld, *stages: str) -> None:
    world.records = {key: record for key, record in world.records.items() if record.recipe.stage not in stages}


def test_the_locked_trace_is_taken_and_named_and_so_is_all_below_it(world: LockedWorld) -> None:
    drop(world, "trace-link", "trace-any")  # no chain leads to it
    assert set(world.verdicts(a_model()).values()) == {"hit"}
    assert "torch 2.13.0" in trace(world).reason.text
    assert "trtbuild.lock names it" in trace(world).reason.text
    assert world.build(replace(a_model(), builder=BuilderSettings(tf32=False)))[-1] == "net/package"


def test_the_files_of_a_locked_trace_are_checked_again(world: LockedWorld) -> None:
    assert [seen.dependency.part for seen in world.plan(a_model()).observations] == ["file:net.py", "file:helper.py"]
    world.files["helper.py"] = "edited"
    assert trace(world).verdict == "run"
    drop(world, "trace-link")  # and not only where a chain asks for it
    assert trace(world).verdict == "run"
    del world.files["helper.py"]
    assert trace(world).verdict == "run"


def test_a_model_that_is_declared_otherwise_is_not_the_locked_one(world: LockedWorld) -> None:
    assert trace(world, replace(a_model(), source=replace(a_model().source, kwargs={"depth": 2}))).verdict == "run"
    world.with_weights("net.safetensors", {"layers.0.weight": "a"})
    assert trace(world, replace(a_model(), weights="net.safetensors")).verdict == "run"


def test_the_reason_of_a_run_is_what_changed_and_not_the_versions(world: LockedWorld) -> None:
    world.files["helper.py"] = "edited"
    drop(world, "trace-any")
    assert [change.part for change in trace(world).reason.changed] == ["file:helper.py"]


@pytest.mark.parametrize("key", [None, "0" * 64])
def test_a_locked_trace_that_is_not_there_is_found_by_its_files(world: LockedWorld, key: str | None) -> None:
    world.locked = LockedTrace(key, VERSIONS)
    assert trace(world).verdict == "hit"
    assert "these are the versions of trtbuild.lock" in trace(world).reason.text


def test_a_trace_of_other_versions_than_the_locked_ones_is_not_taken(world: LockedWorld) -> None:
    assert world.locked is not None
    world.locked = replace(world.locked, versions={**VERSIONS, "torch": "2.12.0"})
    found = trace(world)
    assert found.verdict == "run"
    assert found.recipe is not None and dict(found.recipe.parts)["versions"] == {**VERSIONS, "torch": "2.12.0"}


def test_rejects_a_locked_record_of_another_recipe(world: LockedWorld) -> None:
    assert world.locked is not None and world.locked.key is not None
    drop(world, "trace-any")
    made = world.records[world.locked.key].recipe
    for other in (replace(made, version=9), Recipe("engine", 1, made.parts), replace(made, parts=made.parts[1:])):
        world.keep(other, world.records[world.locked.key].outputs)
        kept = world.locked
        world.locked = replace(world.locked, key=other.key)
        assert trace(world).verdict == "run"
        world.locked = kept


def test_with_the_locked_versions_installed_nothing_is_accepted_unseen(world: LockedWorld) -> None:
    world.versions = VERSIONS
    found = trace(world)  # another timm: this machine can look for itself
    assert found.verdict == "run"
    assert [change.part for change in found.reason.changed] == ["distribution:timm"]
