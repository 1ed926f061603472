"""Partitions that were cut elsewhere, where another parser could be asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.conftest import HOPPER, VERSIONS, FakeWorld, a_model
from trtbuild.core.model.spec import Model, PartitionSettings
from trtbuild.core.model.stand_in import StandIn
from trtbuild.core.planning.graph import Step
from trtbuild.core.planning.lookups import Facts, LockedTrace, ToolchainFacts
from trtbuild.core.recipes import keys
from trtbuild.core.recipes.recipe import Recipe

RTX = StandIn("tensorrt-rtx", "1.7.1", ("float32", "float16"), True, ())
#: A machine with no GPU, one with a GPU and one with neither a GPU nor TensorRT-RTX.
NO_GPU = ToolchainFacts("8.6.0", 17, stand_in=RTX, parsers_differ=True)
GPU = ToolchainFacts("8.6.0", 17, parsers_differ=True)
NEITHER = ToolchainFacts("8.6.0", 17, parsers_differ=True, can_ask=False)
NET = a_model(targets=(HOPPER,))


class Machines(FakeWorld):
    """One cache, and several machines. Pointers to partition records are written as the driver does it."""

    locked: LockedTrace | None = None

    def facts(self, model: Model) -> Facts:
        return replace(super().facts(model), locked=self.locked)

    def become(self, trt: ToolchainFacts, *, torch: bool) -> None:
        self.trt, self.versions = trt, VERSIONS if torch else None

    def partition(self, model: Model = NET) -> Step:
        return self.plan(model).steps["net/partition"]

    def point(self) -> None:
        step = self.partition()
        assert step.record is not None
        pointer = keys.partition_with_any_parser(step.record.recipe)
        self.keep(pointer, {"record": self.put(step.record.to_bytes())})


@pytest.fixture
def world() -> Machines:
    """Cut and converted on a machine with torch, TensorRT-RTX and no GPU."""
    world = Machines()
    world.become(NO_GPU, torch=True)
    world.build(NET)
    world.point()
    return world


@pytest.mark.parametrize(("machine", "torch"), [(GPU, False), (NEITHER, False), (NEITHER, True), (NO_GPU, False)])
def test_a_machine_without_the_parser_uses_another_parsers_partition(
    world: Machines, machine: ToolchainFacts, torch: bool
) -> None:
    mine = world.partition().key
    world.become(machine, torch=torch)
    assert set(world.verdicts(NET).values()) == {"hit"}
    assert world.partition().key == mine
    if machine is not NO_GPU:
        assert "cut with the parser of tensorrt-rtx 1.7.1" in world.partition().reason.text


def test_a_machine_that_can_ask_the_real_parser_asks_it(world: Machines) -> None:
    world.become(GPU, torch=True)
    step = world.partition()
    assert step.verdict == "run"
    assert [change.part for change in step.reason.changed] == ["parser"]
    assert step.job.stand_in is None


def test_the_real_parsers_answer_goes_before_that_of_a_stand_in(world: Machines) -> None:
    world.become(GPU, torch=True)
    world.build(NET)
    own = world.partition().key
    world.become(GPU, torch=False)  # and the pointer still leads to the stand-in's
    assert world.partition().key == own
    world.become(NEITHER, torch=False)
    assert world.partition().key == own


def test_another_stand_in_or_another_that_is_known_of_the_release_is_another_key(world: Machines) -> None:
    mine = world.partition().key
    for other in (replace(RTX, version="1.8.0"), replace(RTX, dtypes=("float32",)), replace(RTX, refuses=("Erf",))):
        world.become(replace(NO_GPU, stand_in=other), torch=True)
        assert world.partition().verdict == "run" and world.partition().key != mine


def test_a_partition_with_other_settings_is_not_accepted(world: Machines) -> None:
    world.become(GPU, torch=False)
    assert world.partition(replace(NET, partition=PartitionSettings(min_block_size=9))).verdict == "run"
    world.become(replace(GPU, version="8.6.1"), torch=False)
    assert world.partition().verdict == "run"


def test_a_pointer_to_something_else_is_not_followed(world: Machines) -> None:
    world.become(GPU, torch=False)
    (pointer,) = (record for record in world.records.values() if record.recipe.stage == "partition-any")
    (cut,) = (record for record in world.records.values() if record.recipe.stage == "partition")
    others = [
        replace(cut, recipe=Recipe("engine", 1, cut.recipe.parts)),
        replace(cut, recipe=replace(cut.recipe, parts=cut.recipe.parts[1:])),
    ]
    for data in (b"", b"[]", *(other.to_bytes() for other in others)):
        world.keep(pointer.recipe, {"record": world.put(data)})
        assert world.partition().verdict == "run"
    world.keep(pointer.recipe, {"record": world.put(cut.to_bytes())})
    assert world.partition().verdict == "hit"


def test_the_locked_partition_goes_before_any_other(world: Machines) -> None:
    mine = world.partition().key
    world.become(GPU, torch=True)
    world.build(NET)
    assert world.partition().key != mine
    trace = world.plan(NET).steps["net/trace"].key
    world.locked = LockedTrace(trace, VERSIONS, (str(mine),))
    assert world.partition().key == mine
    assert "trtbuild.lock names it" in world.partition().reason.text
    assert world.partition(replace(NET, partition=PartitionSettings(min_block_size=9))).key != mine


def test_a_new_partition_uses_the_parser_of_its_recipe(world: Machines) -> None:
    world.become(GPU, torch=False)
    record = world.partition().record
    assert record is not None
    world.evict(record.outputs["partitions"])
    step = world.partition()
    assert step.verdict == "run" and step.recipe is not None
    assert (
        step.job.stand_in
        == keys.stand_in_of(step.recipe)
        == {**vars(RTX), "dtypes": ["float32", "float16"], "refuses": []}
    )


def test_a_pointer_to_a_missing_record_is_a_miss(world: Machines) -> None:
    world.become(GPU, torch=False)
    (cut,) = (record for record in world.records.values() if record.recipe.stage == "partition")
    del world.records[cut.recipe.key]
    assert world.partition().verdict == "run"
    world.become(NEITHER, torch=True)
    assert world.partition().verdict == "run"


def test_where_no_other_parser_answers_nothing_else_is_looked_for() -> None:
    world = Machines()
    world.build(a_model())
    step = world.plan(a_model()).steps["net/partition"]
    assert step.recipe is not None
    world.keep(keys.partition_with_any_parser(step.recipe), {"record": world.put(b"nothing")})
    world.versions = None
    assert world.plan(a_model()).steps["net/partition"].verdict == "hit"
