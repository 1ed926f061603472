"""Plans that use a partition step of another machine, which asked another parser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.core.conftest import HOPPER, VERSIONS, FakeWorld, a_model
from trtbuild.core.model.spec import Model, PartitionSettings
from trtbuild.core.model.stand_in import StandInParser
from trtbuild.core.planning.graph import Step
from trtbuild.core.planning.lookups import Facts, LockedSteps, ToolchainFacts
from trtbuild.core.recipes.lookup_recipes import partition_with_any_parser, stand_in_of
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record

#: The stand-in: a parser that a machine without a GPU uses in place of the parser of TensorRT 8.6.
RTX = StandInParser("tensorrt-rtx", "1.7.1", ("float32", "float16"), narrows_int64=True, refuses=())
#: Three machines: one has no GPU, one has a GPU, and one has neither a GPU nor TensorRT-RTX.
NO_GPU = ToolchainFacts("8.6.0", opset=17, stand_in=RTX, parsers_differ=True)
GPU = ToolchainFacts("8.6.0", opset=17, parsers_differ=True)
NEITHER = ToolchainFacts("8.6.0", opset=17, parsers_differ=True, has_parser=False)
NET = a_model(targets=(HOPPER,))


class Machines(FakeWorld):
    """One cache and several machines.

    `write_pointer` writes a pointer record, as the driver does. The pointer leads machines with other parsers to the record
    of a partition step.
    """

    locked_steps: LockedSteps | None = None
    looked_up: Sequence[str] = ()  # keys

    def record(self, key: str) -> Record | None:
        self.looked_up = [*self.looked_up, key]
        return super().record(key)

    def facts(self, model: Model) -> Facts:
        return replace(super().facts(model), locked_steps=self.locked_steps)

    def switch_to(self, trt: ToolchainFacts, *, torch: bool) -> None:
        self.trt, self.versions = trt, VERSIONS if torch else None

    def partition(self, model: Model = NET) -> Step:
        return self.plan(model).steps["net/partition"]

    def write_pointer(self) -> None:
        step = self.partition()
        assert step.record is not None
        pointer = partition_with_any_parser(step.record.recipe)
        self.keep(pointer, {"record": self.put(step.record.to_bytes())})


@pytest.fixture
def world() -> Machines:
    """The cache after a build on a machine with torch and TensorRT-RTX, and without a GPU."""
    world = Machines()
    world.switch_to(NO_GPU, torch=True)
    world.build(NET)
    world.write_pointer()
    return world


@pytest.mark.parametrize(("machine", "torch"), [(GPU, False), (NEITHER, False), (NEITHER, True), (NO_GPU, False)])
def test_a_machine_without_the_parser_uses_the_partition_of_another_parser(
    world: Machines, machine: ToolchainFacts, torch: bool
) -> None:
    stand_in_key = world.partition().key
    world.switch_to(machine, torch=torch)
    assert set(world.verdicts(NET).values()) == {"hit"}
    assert world.partition().key == stand_in_key
    if machine is not NO_GPU:
        assert "partitioned with the parser of tensorrt-rtx 1.7.1" in world.partition().reason.text


def test_a_machine_that_can_run_the_real_parser_partitions_the_model_again(world: Machines) -> None:
    world.switch_to(GPU, torch=True)
    step = world.partition()
    assert step.verdict == "run"
    assert [change.part for change in step.reason.changed] == ["parser"]
    assert step.job.stand_in is None


def test_the_partition_of_the_real_parser_is_preferred_to_that_of_a_stand_in(world: Machines) -> None:
    world.switch_to(GPU, torch=True)
    world.build(NET)
    real_parser_key = world.partition().key
    world.switch_to(GPU, torch=False)  # the pointer still leads to the stand-in's partition
    assert world.partition().key == real_parser_key
    world.switch_to(NEITHER, torch=False)
    assert world.partition().key == real_parser_key


def test_another_stand_in_or_other_facts_about_it_change_the_key(world: Machines) -> None:
    first_key = world.partition().key
    for stand_in in (replace(RTX, version="1.8.0"), replace(RTX, dtypes=("float32",)), replace(RTX, refuses=("Erf",))):
        world.switch_to(replace(NO_GPU, stand_in=stand_in), torch=True)
        assert world.partition().verdict == "run" and world.partition().key != first_key


def test_a_partition_with_other_settings_is_not_accepted(world: Machines) -> None:
    world.switch_to(GPU, torch=False)
    assert world.partition(replace(NET, partition=PartitionSettings(min_block_size=9))).verdict == "run"
    world.switch_to(replace(GPU, version="8.6.1"), torch=False)
    assert world.partition().verdict == "run"


def test_a_pointer_to_another_record_is_not_followed(world: Machines) -> None:
    world.switch_to(GPU, torch=False)
    (pointer,) = (record for record in world.records.values() if record.recipe.stage == "partition-any")
    (right,) = (record for record in world.records.values() if record.recipe.stage == "partition")
    wrong = [
        replace(right, recipe=Recipe("engine", 1, right.recipe.parts)),
        replace(right, recipe=replace(right.recipe, parts=right.recipe.parts[1:])),
    ]
    for data in (b"", b"[]", *(record.to_bytes() for record in wrong)):
        world.keep(pointer.recipe, {"record": world.put(data)})
        assert world.partition().verdict == "run"
    world.keep(pointer.recipe, {"record": world.put(right.to_bytes())})
    assert world.partition().verdict == "hit"


def test_a_partition_whose_stand_in_lacks_a_field_is_not_accepted(world: Machines) -> None:
    (pointer,) = (record for record in world.records.values() if record.recipe.stage == "partition-any")
    (right,) = (record for record in world.records.values() if record.recipe.stage == "partition")
    stand_in = {name: value for name, value in (stand_in_of(right.recipe) or {}).items() if name != "toolchain"}
    assert stand_in
    parts = tuple(
        (name, [*value[:2], stand_in] if name == "parser" and isinstance(value, list) else value)
        for name, value in right.recipe.parts
    )
    forged = replace(right, recipe=replace(right.recipe, parts=parts))
    assert forged.recipe.key != right.recipe.key
    world.switch_to(GPU, torch=False)
    world.keep(pointer.recipe, {"record": world.put(forged.to_bytes())})
    assert world.partition().verdict == "run"
    world.records[forged.recipe.key] = forged
    world.locked_steps = LockedSteps(None, VERSIONS, (forged.recipe.key,))
    assert world.partition().verdict == "run"


def test_the_locked_partition_is_preferred_to_any_other(world: Machines) -> None:
    stand_in_key = world.partition().key
    world.switch_to(GPU, torch=True)
    world.build(NET)
    assert world.partition().key != stand_in_key
    trace_key = world.plan(NET).steps["net/trace"].key
    world.locked_steps = LockedSteps(trace_key, VERSIONS, (str(stand_in_key),))
    assert world.partition().key == stand_in_key
    assert "trtbuild.lock names it" in world.partition().reason.text
    assert world.partition(replace(NET, partition=PartitionSettings(min_block_size=9))).key != stand_in_key


def test_an_accepted_partition_that_runs_again_uses_the_parser_of_its_recipe(world: Machines) -> None:
    world.switch_to(GPU, torch=False)
    record = world.partition().record
    assert record is not None
    world.evict(record.outputs["partitions"])
    step = world.partition()
    assert step.verdict == "run" and step.recipe is not None
    stand_in = {**vars(RTX), "dtypes": ["float32", "float16"], "refuses": []}
    assert step.job.stand_in == stand_in_of(step.recipe) == stand_in


def test_a_pointer_to_a_missing_record_is_a_miss(world: Machines) -> None:
    world.switch_to(GPU, torch=False)
    (partition,) = (record for record in world.records.values() if record.recipe.stage == "partition")
    del world.records[partition.recipe.key]
    assert world.partition().verdict == "run"
    world.switch_to(NEITHER, torch=True)
    assert world.partition().verdict == "run"


def test_without_another_parser_no_pointer_is_followed() -> None:
    world = Machines()
    world.build(a_model())
    step = world.plan(a_model()).steps["net/partition"]
    assert step.recipe is not None
    pointer = partition_with_any_parser(step.recipe)
    del world.records[step.recipe.key]
    world.versions = None
    for parsers_differ in (False, True):
        world.rtx, world.looked_up = replace(world.rtx, parsers_differ=parsers_differ), []
        assert world.plan(a_model()).steps["net/partition"].verdict == "run"
        assert (pointer.key in world.looked_up) == parsers_differ
