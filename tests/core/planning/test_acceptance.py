"""The planner finds the trace of another machine by the key in the lock file, or by the files that the trace has read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.conftest import VERSIONS, FakeWorld, a_model
from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.spec import Model
from trtbuild.core.planning.graph import Step
from trtbuild.core.planning.lookups import Facts, LockedSteps
from trtbuild.core.recipes.recipe import Recipe


class LockedWorld(FakeWorld):
    """A `FakeWorld` with a lock file."""

    locked_steps: LockedSteps | None = None

    def facts(self, model: Model) -> Facts:
        return replace(super().facts(model), locked_steps=self.locked_steps)


@pytest.fixture
def world() -> LockedWorld:
    """A machine that lacks the locked version of torch. Another machine has built and locked the model."""
    world = LockedWorld()
    world.build(a_model())
    world.locked_steps = LockedSteps(world.plan(a_model()).steps["net/trace"].key, VERSIONS)
    world.versions = None
    world.distributions["timm"] = "2.0"
    return world


def trace(world: FakeWorld, model: Model | None = None) -> Step:
    return world.plan(model or a_model()).steps["net/trace"]


def remove_records(world: FakeWorld, *stages: str) -> None:
    world.records = {key: record for key, record in world.records.items() if record.recipe.stage not in stages}


def test_the_locked_trace_and_all_later_steps_are_hits(world: LockedWorld) -> None:
    # without these records, only the lock file leads to the trace
    remove_records(world, "trace-link", "trace-any")
    assert set(world.verdicts(a_model()).values()) == {"hit"}
    assert "torch 2.13.0" in trace(world).reason.text
    assert "trtbuild.lock names it" in trace(world).reason.text
    ran = world.build(replace(a_model(), builder=BuilderSettings(tf32=False)))
    assert [step.split("/")[1] for step in ran] == ["engine", "engine", "engine", "package"]


def test_the_files_of_a_locked_trace_are_checked_again(world: LockedWorld) -> None:
    assert [observation.dependency.part for observation in world.plan(a_model()).observations] == [
        "file:net.py",
        "file:helper.py",
    ]
    world.files["helper.py"] = "edited"
    assert trace(world).verdict == "run"
    remove_records(world, "trace-link")  # the check does not need the chain of link records (`core.recipes.chain`)
    assert trace(world).verdict == "run"
    del world.files["helper.py"]
    assert trace(world).verdict == "run"


def test_a_model_with_another_declaration_does_not_use_the_locked_trace(world: LockedWorld) -> None:
    assert trace(world, replace(a_model(), source=replace(a_model().source, kwargs={"depth": 2}))).verdict == "run"
    world.add_weights_file("net.safetensors", {"layers.0.weight": "a"})
    assert trace(world, replace(a_model(), weights="net.safetensors")).verdict == "run"


def test_the_reason_of_a_run_is_the_changed_file_not_the_versions(world: LockedWorld) -> None:
    world.files["helper.py"] = "edited"
    remove_records(world, "trace-any")
    assert [change.part for change in trace(world).reason.changed] == ["file:helper.py"]


@pytest.mark.parametrize("key", [None, "0" * 64])
def test_a_missing_locked_trace_is_found_by_its_files(world: LockedWorld, key: str | None) -> None:
    world.locked_steps = LockedSteps(key, VERSIONS)
    assert trace(world).verdict == "hit"
    assert "these are the versions of trtbuild.lock" in trace(world).reason.text


def test_a_trace_of_other_versions_than_the_locked_versions_is_not_used(world: LockedWorld) -> None:
    assert world.locked_steps is not None
    world.locked_steps = replace(world.locked_steps, versions={**VERSIONS, "torch": "2.12.0"})
    step = trace(world)
    assert step.verdict == "run"
    assert step.recipe is not None and dict(step.recipe.parts)["versions"] == {**VERSIONS, "torch": "2.12.0"}


def test_rejects_a_locked_record_of_another_recipe(world: LockedWorld) -> None:
    assert world.locked_steps is not None and world.locked_steps.trace_key is not None
    remove_records(world, "trace-any")
    recipe = world.records[world.locked_steps.trace_key].recipe
    outputs = world.records[world.locked_steps.trace_key].outputs
    for other in (
        replace(recipe, version=99),
        Recipe("engine", 1, recipe.parts),
        replace(recipe, parts=recipe.parts[1:]),
    ):
        world.keep(other, outputs)
        world.locked_steps = replace(world.locked_steps, trace_key=other.key)
        assert trace(world).verdict == "run"


def test_a_locked_record_with_a_dependency_of_an_unknown_kind_is_not_used(world: LockedWorld) -> None:
    """A later release of trtbuild may record such dependencies."""
    assert world.locked_steps is not None and world.locked_steps.trace_key is not None
    remove_records(world, "trace-any")
    record = world.records[world.locked_steps.trace_key]
    recipe = replace(record.recipe, parts=(*record.recipe.parts, ("kernel:module", "1")))
    world.keep(recipe, record.outputs)
    world.locked_steps = replace(world.locked_steps, trace_key=recipe.key)
    assert trace(world).verdict == "run"


def test_a_machine_with_the_locked_versions_compares_its_distributions(world: LockedWorld) -> None:
    world.versions = VERSIONS
    step = trace(world)  # this machine can trace the model, so it compares the version of timm
    assert step.verdict == "run"
    assert [change.part for change in step.reason.changed] == ["distribution:timm"]
