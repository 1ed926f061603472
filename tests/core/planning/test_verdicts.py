"""Verdicts on single steps that are forced or uncacheable, or whose records are missing, untrusted, damaged or wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.core.conftest import FakeWorld, a_model
from trtbuild.core.recipes.record import Record

CONVERTS = ["net/convert/layers.0"]  # all layers are equal, so they share one conversion
ENGINES = ["net/engine/layers.0@ada", "net/engine/layers.1@ada", "net/engine/layers.2@ada"]
FIRST_BUILD = ["net/trace", "net/lower", "net/partition", *CONVERTS, *ENGINES, "net/package"]


def reason_of(world: FakeWorld, step: str) -> tuple[str, list[tuple[str, str, str]]]:
    reason = world.plan(a_model()).steps[step].reason
    return reason.code, [(change.part, change.was, change.now) for change in reason.changed]


def test_forced_steps_run_once_and_their_reason_is_forced(world: FakeWorld) -> None:
    world.build(a_model())
    world.forced, world.ran, world.ran_keys = True, [], set()
    assert world.plan(a_model()).steps["net/trace"].reason.code == "forced"
    assert world.build(a_model()) == FIRST_BUILD


def test_an_uncacheable_step_runs_each_time_with_its_reason(world: FakeWorld) -> None:
    world.build(a_model())
    world.uncacheable, world.ran, world.ran_keys = {"net/trace"}, [], set()
    step = world.plan(a_model()).steps["net/trace"]
    assert (step.verdict, step.reason.code, step.reason.text) == ("run", "uncacheable", "it reads the clock")
    assert world.build(a_model()) == ["net/trace"]
    assert world.build(a_model()) == ["net/trace"]


def test_a_record_of_another_recipe_under_the_key_is_a_miss(world: FakeWorld) -> None:
    world.build(a_model())
    step = world.plan(a_model()).steps[ENGINES[0]]
    assert step.key is not None and step.record is not None and step.recipe is not None
    forged = replace(step.recipe, parts=(*step.recipe.parts[1:], step.recipe.parts[0]))
    world.records[step.key] = Record(forged, step.record.outputs)
    step_after = world.plan(a_model()).steps[ENGINES[0]]
    assert (step_after.verdict, step_after.reason.code) == ("run", "corrupt")
    assert world.build(a_model()) == [ENGINES[0]]


@pytest.mark.parametrize("step", ["net/trace", "net/lower", "net/partition", CONVERTS[0], ENGINES[0], "net/package"])
def test_a_record_without_an_output_of_its_stage_is_a_miss(world: FakeWorld, step: str) -> None:
    world.build(a_model())
    record = world.plan(a_model()).steps[step].record
    assert record is not None
    world.keep(record.recipe, dict(list(record.outputs.items())[1:]))
    step_after = world.plan(a_model()).steps[step]
    assert (step_after.verdict, step_after.reason.code) == ("run", "corrupt")
    assert step in world.build(a_model())


def test_a_trace_whose_chain_is_missing_is_evicted_not_changed(world: FakeWorld) -> None:
    model = replace(a_model(), source=replace(a_model().source, kwargs={"depth": 1, "width": 2}))
    world.build(model)
    world.records.clear()  # this also removes the chain, which leads to the trace's record (`core.recipes.chain`)
    assert world.plan(model).steps["net/trace"].reason.code == "evicted"
    # a removed field of the manifest is still a change
    fewer = replace(model, source=replace(model.source, kwargs={"depth": 1}))
    reason = world.plan(fewer).steps["net/trace"].reason
    assert [change.part for change in reason.changed] == ["source.kwargs.width"]


def test_a_step_whose_record_was_removed_is_evicted_not_changed(world: FakeWorld) -> None:
    world.build(a_model())
    del world.records[world.plan(a_model()).steps["net/lower"].key or ""]
    assert reason_of(world, "net/lower") == ("evicted", [])
    assert world.build(a_model()) == ["net/lower"]


def test_an_untrusted_record_is_a_miss_with_its_reason(world: FakeWorld) -> None:
    world.build(a_model())
    world.untrusted = {world.plan(a_model()).steps[ENGINES[0]].key or ""}
    step = world.plan(a_model()).steps[ENGINES[0]]
    assert (step.verdict, step.reason.code, step.reason.text) == ("run", "untrusted", "it is not signed")


def test_the_reason_of_a_trace_with_untrusted_links_is_untrusted(world: FakeWorld) -> None:
    world.build(a_model())
    links = {key for key, record in world.records.items() if record.recipe.stage == "trace-link"}
    assert links
    for untrusted in (links, set(world.records)):
        world.untrusted, world.history = untrusted, {}
        step = world.plan(a_model()).steps["net/trace"]
        assert (step.verdict, step.reason.code, step.reason.text) == ("run", "untrusted", "it is not signed")


def test_a_package_runs_again_if_only_reference_changes_and_its_reason_says_so(world: FakeWorld) -> None:
    for first, second in ((True, False), (False, True)):
        world.records.clear()
        world.build(replace(a_model(), reference=first))
        reason = world.plan(replace(a_model(), reference=second)).steps["net/package"].reason
        assert reason.text == "changed: reference"
        changes = [(change.part, change.was, change.now) for change in reason.changed]
        assert changes == [("reference", str(first).lower(), str(second).lower())]


# -- documents that planning reads


@pytest.mark.parametrize(
    ("step", "name"), [("net/trace", "interface"), ("net/trace", "weights"), ("net/partition", "partitions")]
)
def test_a_hit_with_missing_documents_runs_again(world: FakeWorld, step: str, name: str) -> None:
    world.build(a_model())
    record = world.plan(a_model()).steps[step].record
    assert record is not None
    world.evict(record.outputs[name])
    assert reason_of(world, step) == ("evicted", [])
    assert world.build(a_model()) == [step]


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b"\xff", b"null"])
@pytest.mark.parametrize(
    ("step", "name"), [("net/trace", "interface"), ("net/trace", "weights"), ("net/partition", "partitions")]
)
def test_a_hit_with_invalid_documents_runs_again(world: FakeWorld, step: str, name: str, damage: bytes) -> None:
    world.build(a_model())
    record = world.plan(a_model()).steps[step].record
    assert record is not None
    world.keep(record.recipe, {**record.outputs, name: world.put(damage)})
    assert reason_of(world, step) == ("corrupt", [])
    assert world.build(a_model()) == [step]


@pytest.mark.parametrize(("name", "output"), [("trace", "interface"), ("partition", "partitions")])
def test_steps_whose_documents_contradict_each_other_run_again(world: FakeWorld, name: str, output: str) -> None:
    """The changed document is valid, but it lists no weights, or a weight that does not exist."""
    world.build(a_model())
    expected = world.plan(a_model())
    record = expected.steps[f"net/{name}"].record
    assert record is not None
    document = json.loads(world.blob(record.outputs[output].sha256))
    if name == "trace":
        document["weights"] = []
    else:
        document["partitions"][0]["weights"] = [99]
    world.keep(record.recipe, {**record.outputs, output: world.put(json.dumps(document).encode())})
    world.ran, world.ran_keys = [], set()
    assert reason_of(world, "net/trace") == ("corrupt", [])
    assert world.build(a_model()) == (["net/trace"] if name == "trace" else ["net/trace", "net/partition"])
    assert world.plan(a_model()).steps["net/package"].key == expected.steps["net/package"].key


def test_an_exception_that_a_new_trace_does_not_remove_is_raised(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise IndexError

    world.build(a_model())
    monkeypatch.setattr("trtbuild.core.planning.planned_engines.engine_job", fail)
    with pytest.raises(IndexError):
        world.build(a_model())


def test_the_step_of_a_document_in_quarantine_runs_again(world: FakeWorld) -> None:
    world.build(a_model())
    record = world.plan(a_model()).steps["net/partition"].record
    assert record is not None
    world.damaged.add(record.outputs["partitions"].sha256)
    assert reason_of(world, "net/partition") == ("corrupt", [])


def test_a_partition_record_without_a_program_is_a_miss(world: FakeWorld) -> None:
    world.build(a_model())
    record = world.plan(a_model()).steps["net/partition"].record
    assert record is not None
    world.keep(record.recipe, {"partitions": record.outputs["partitions"]})
    assert reason_of(world, "net/partition") == ("corrupt", [])
    assert world.build(a_model()) == ["net/partition"]
