"""Which blobs a plan needs for its outputs, and which steps run if blobs are missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.conftest import FakeWorld, a_model, weight
from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.recipes.record import Output

ENGINES = ["net/engine/layers.0@ada", "net/engine/layers.1@ada", "net/engine/layers.2@ada"]


def output(world: FakeWorld, step: str, name: str) -> Output:
    record = world.plan(a_model()).steps[step].record
    assert record is not None
    return record.outputs[name]


def reasons_of_runs(world: FakeWorld) -> dict[str, str]:
    """Return the reason code of each step that is not a hit, by the id of the step."""
    return {step.id: step.reason.code for step in world.plan(a_model()).steps.values() if step.verdict != "hit"}


@pytest.fixture
def built(world: FakeWorld) -> FakeWorld:
    world.build(a_model())
    return world


#: Blobs that planning itself reads. test_verdicts.py tests them.
READ_BY_PLANNING = {"interface", "weights", "partitions"}


def test_a_missing_blob_that_only_hits_need_runs_nothing(built: FakeWorld) -> None:
    plan = built.plan(a_model())
    for step in plan.steps.values():
        assert step.record is not None
        for name, blob in step.record.outputs.items():
            if name not in READ_BY_PLANNING:
                built.blobs.pop(blob.sha256, None)
    assert reasons_of_runs(built) == {}


def test_a_package_that_is_not_in_place_needs_its_plans(built: FakeWorld) -> None:
    built.evict(output(built, ENGINES[1], "plan"))
    assert reasons_of_runs(built) == {}
    built.placed.clear()
    assert reasons_of_runs(built) == {ENGINES[1]: "evicted"}
    assert built.build(a_model()) == [ENGINES[1]]


def test_a_package_that_is_not_in_place_needs_layer_information(built: FakeWorld) -> None:
    built.placed.clear()
    built.evict(output(built, ENGINES[1], "layers"))  # all engines of this model share one `layers` blob
    assert reasons_of_runs(built) == dict.fromkeys(ENGINES, "evicted")


def test_a_package_with_a_reference_needs_the_programs_of_its_engines(built: FakeWorld) -> None:
    model = replace(a_model(), reference=True)
    plan = built.plan(model)
    assert [step.id for step in plan.steps.values() if step.verdict != "hit"] == ["net/package"]
    built.build(model)
    record = built.plan(model).steps["net/partition"].record
    assert record is not None
    built.placed.clear()
    built.evict(next(blob for name, blob in record.outputs.items() if name.startswith("program:")))
    reasons = {step.id: step.reason.code for step in built.plan(model).steps.values() if step.verdict != "hit"}
    assert reasons == {"net/partition": "evicted"}


@pytest.mark.parametrize("name", ["index", "names"])
def test_a_package_that_is_not_in_place_needs_its_index(built: FakeWorld, name: str) -> None:
    built.placed.clear()
    assert reasons_of_runs(built) == {}
    built.evict(output(built, "net/package", name))
    assert reasons_of_runs(built) == {"net/package": "evicted"}
    assert built.build(a_model()) == ["net/package"]


def test_a_package_that_is_not_in_place_needs_the_programs_and_weights_of_torch_partitions(built: FakeWorld) -> None:
    partition = built.plan(a_model()).steps["net/partition"].record
    assert partition is not None
    (program,) = (
        output
        for name, output in partition.outputs.items()
        if name.startswith("program:") and b"nms" in built.blob(output.sha256)
    )
    built.evict(program)
    built.placed.clear()
    assert reasons_of_runs(built) == {"net/partition": "evicted"}
    del built.blobs[weight("initial 2").sha256]  # the weight of nms
    assert reasons_of_runs(built) == {"net/partition": "evicted", "net/trace": "evicted"}
    assert sorted(built.build(a_model())) == ["net/partition", "net/trace"]


def test_a_package_that_runs_needs_module_paths_and_the_origins_of_nodes(built: FakeWorld) -> None:
    package = built.plan(a_model()).package
    assert package is not None and package.key is not None
    origins, modules = output(built, "net/convert/layers.0", "origins"), output(built, "net/lower", "modules")
    del built.records[package.key]
    built.evict(origins, modules)
    reasons = reasons_of_runs(built)
    assert reasons["net/lower"] == "evicted" and reasons["net/convert/layers.0"] == "evicted"
    assert set(built.build(a_model())) == {"net/lower", "net/convert/layers.0", "net/package"}


def test_missing_inputs_of_an_engine_run_the_steps_back_to_the_trace(built: FakeWorld) -> None:
    program = next(name for name in _output_names(built, "net/partition") if name.startswith("program:"))
    blobs = [
        output(built, "net/convert/layers.0", "onnx"),
        output(built, "net/partition", program),
        output(built, "net/lower", "program"),
        output(built, "net/trace", "program"),
    ]
    changed = a_model(builder=BuilderSettings(tf32=False))
    for count, blob in enumerate(blobs, start=1):
        built.evict(blob)
        running = [step.id for step in built.plan(changed).steps.values() if step.reason.code == "evicted"]
        stages = ["trace", "lower", "partition", "convert"][-count:]
        assert list(dict.fromkeys(step.split("/")[1] for step in running)) == stages
    ran = built.build(changed)
    assert ran[:4] == ["net/trace", "net/lower", "net/partition", "net/convert/layers.0"]
    assert built.build(changed) == []


def _output_names(world: FakeWorld, step: str) -> list[str]:
    record = world.plan(a_model()).steps[step].record
    assert record is not None
    return list(record.outputs)


def test_an_engine_that_runs_needs_its_own_weights_only(built: FakeWorld) -> None:
    engine = built.plan(a_model()).steps[ENGINES[2]]
    assert engine.key is not None
    del built.records[engine.key]
    del built.blobs[weight("initial 1").sha256]  # the weight of layers.1
    assert reasons_of_runs(built) == {ENGINES[2]: "evicted", "net/package": "new"}
    del built.blobs[weight("initial 3").sha256]  # the weight of layers.2
    assert reasons_of_runs(built)["net/trace"] == "evicted"
    assert set(built.build(a_model())) == {"net/trace", ENGINES[2]}


def test_a_missing_blob_of_a_weights_file_does_not_run_the_trace(world: FakeWorld) -> None:
    model = a_model(weights="a.safetensors")
    world.add_weights_file(
        "a.safetensors", {f"{name}.weight": name for name in ("layers.0", "layers.1", "nms", "layers.2")}
    )
    world.build(model)
    del world.blobs[weight("layers.2").sha256]
    changed = a_model(weights="a.safetensors", builder=BuilderSettings(tf32=False))
    assert world.plan(changed).steps["net/trace"].verdict == "hit"


def test_the_package_of_an_evicted_engine_is_still_a_hit(built: FakeWorld) -> None:
    built.placed.clear()
    built.evict(output(built, ENGINES[0], "plan"))
    plan = built.plan(a_model())
    assert plan.steps[ENGINES[0]].record is not None
    assert plan.package is not None and plan.package.verdict == "hit"
