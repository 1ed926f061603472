"""The contents of a lock file, the records that it refuses, and the differences between two lock files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trtbuild.core.planning.locks import Lock, LockedModel, LockedStep, LockedTarget, differences, stage_of
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record

KEY, OTHER_KEY, PLAN, OTHER_DIGEST = "a" * 64, "b" * 64, "c" * 64, "d" * 64


def a_lock(plan: str = PLAN, version: str = "1.7.1", torch: str = "2.13.0") -> Lock:
    steps = {
        "net/trace": LockedStep(OTHER_KEY),
        "net/engine/layers.0@ada": LockedStep(KEY, {"plan": Output(plan, 10)}),
        "net/engine/layers.1@ada": LockedStep(KEY, {"plan": Output(plan, 10)}),
    }
    model = LockedModel({"torch": torch}, {"ada": LockedTarget("tensorrt-rtx", version)}, steps)
    manifests = {"trtbuild.yaml": "e" * 64}
    return Lock("linux-x86_64", step_versions={"engine": 1}, manifests=manifests, models={"net": model})


def record(**outputs: Output) -> Record:
    return Record(Recipe("engine", 1, (("a", 1),)), outputs)


def test_a_record_with_other_digests_is_refused_with_the_differences() -> None:
    lock = a_lock()
    assert lock.refusal(KEY, record(plan=Output(PLAN, 10), layers=Output(OTHER_DIGEST, 3))) is None
    message = "its plan differs from trtbuild.lock"
    assert lock.refusal(KEY, record(plan=Output(OTHER_DIGEST, 10))) == message
    assert lock.refusal(KEY, record(plan=Output(PLAN, 11))) == message
    assert lock.refusal(KEY, record(layers=Output(OTHER_DIGEST, 3))) == message


def test_steps_that_are_not_locked_or_have_no_digest_are_not_refused() -> None:
    assert a_lock().refusal("f" * 64, record(plan=Output(OTHER_DIGEST, 10))) is None
    assert a_lock().refusal(OTHER_KEY, record(program=Output(OTHER_DIGEST, 10))) is None


def test_a_model_has_the_key_of_its_trace() -> None:
    model = a_lock().models["net"]
    assert model.key_of("trace") == OTHER_KEY
    assert replace(model, steps={}).key_of("trace") is None


@pytest.mark.parametrize(
    ("step", "stage"),
    [
        ("vit/trace", "trace"),
        ("vit/partition@tensorrt-8.6.0", "partition"),
        ("vit/engine/a.b@ada", "engine"),
        ("x", ""),
    ],
)
def test_the_stage_of_a_step_is_in_its_id(step: str, stage: str) -> None:
    assert stage_of(step) == stage


def test_equal_locks_do_not_differ_and_without_an_earlier_lock_every_entry_is_added() -> None:
    assert list(differences(a_lock(), a_lock())) == []
    added = list(differences(None, a_lock()))
    assert {entry.change for entry in added} == {"added"}
    assert {entry.area for entry in added} == {"step version", "manifest", "version", "target", "step"}


def test_differences_are_listed_causes_first() -> None:
    before, after = a_lock(), a_lock(plan=OTHER_DIGEST, version="1.8.0", torch="2.14.0")
    steps = dict(after.models["net"].steps)
    del steps["net/engine/layers.1@ada"]
    after = replace(after, platform="linux-aarch64", step_versions={"engine": 2}, manifests={})
    after = replace(after, models={"net": replace(after.models["net"], steps=steps)})
    entries = list(differences(before, after))
    assert [(entry.area, entry.name, entry.change) for entry in entries] == [
        ("platform", "platform", "changed"),
        ("step version", "engine", "changed"),
        ("manifest", "trtbuild.yaml", "removed"),
        ("version", "net: torch", "changed"),
        ("target", "net@ada", "changed"),
        ("step", "net/engine/layers.0@ada", "changed"),
        ("step", "net/engine/layers.1@ada", "removed"),
    ]
    assert [entry.name for entry in entries if entry.is_informational] == ["trtbuild.yaml"]
    assert (entries[4].was, entries[4].now) == ("tensorrt-rtx 1.7.1", "tensorrt-rtx 1.8.0")
