"""Values pass from one part to the next without a copy, and are freed after their last use.

A part is a partition that is ready to run.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

from trtbuild.core.partition.partitions import Partition, Partitions, TensorType
from trtbuild.runtime.calls.call import Call
from trtbuild.runtime.calls.stitching import StitchedParts, value_weight_slots

ROWS = TensorType("float32", (["sym", 0], 4))
CALL = Call(profile=0, sizes=(3,), stream=0, device="cpu")


class Value:
    """A value with a name. Output 0 of part ``a`` has the name ``a:0``."""

    def __init__(self, name: str) -> None:
        self.name = name


class FakePart:
    """Returns `count` new values. Records its inputs, and the outputs of all parts that were alive during the call."""

    def __init__(self, name: str, count: int, alive: weakref.WeakSet[Value]) -> None:
        self.name, self.count, self.alive = name, count, alive
        self.inputs_of_call: list[str] = []
        self.alive_during_call: list[str] = []

    def __call__(self, values: Sequence[Any], call: Call) -> Sequence[Any]:
        assert call is CALL
        self.inputs_of_call = [value.name for value in values]
        gc.collect()
        self.alive_during_call = sorted(value.name for value in self.alive)
        outputs = [Value(f"{self.name}:{number}") for number in range(self.count)]
        for value in outputs:
            self.alive.add(value)
        return outputs


def partition(name: str, inputs: Sequence[str], output_count: int) -> Partition:
    return Partition(
        name, "torch", "0" * 64, (), tuple((source, ROWS) for source in inputs), (ROWS,) * output_count, ()
    )


def run(
    partitions: Partitions, input_count: int, weights: dict[int, Any] | None = None
) -> tuple[list[str], dict[str, FakePart]]:
    alive: weakref.WeakSet[Value] = weakref.WeakSet()
    parts = {part.name: FakePart(part.name, len(part.outputs), alive) for part in partitions.partitions}
    stitched = StitchedParts(partitions, parts, weights or {}, input_count)
    values = [Value(f"input:{number}") for number in range(input_count)]
    stitched(values, CALL)  # the first call must not affect the second
    results = stitched(values, CALL)
    return [value.name for value in results], parts


def test_one_part_gets_all_inputs_and_returns_all_outputs() -> None:
    whole = Partitions((partition("model", ["input:0", "input:1"], 2),), ("model:0", "model:1"))
    results, parts = run(whole, 2)
    assert results == ["model:0", "model:1"] and parts["model"].inputs_of_call == ["input:0", "input:1"]


def test_one_part_can_have_inputs_and_outputs_in_another_order() -> None:
    reordered = Partitions((partition("model", ["input:1", "input:0"], 2),), ("model:1", "input:0", "model:1"))
    results, parts = run(reordered, 2)
    assert results == ["model:1", "input:0", "model:1"] and parts["model"].inputs_of_call == ["input:1", "input:0"]


def test_frees_values_after_their_last_use() -> None:
    chain = Partitions(
        (
            partition("a", ["input:0"], 2),
            partition("b", ["a:0"], 2),
            partition("c", ["b:0", "a:1"], 1),
            partition("d", ["c:0"], 1),
        ),
        ("d:0", "b:1"),
    )
    results, parts = run(chain, 1)
    assert results == ["d:0", "b:1"]
    assert [part.inputs_of_call for part in parts.values()] == [["input:0"], ["a:0"], ["b:0", "a:1"], ["c:0"]]
    assert parts["b"].alive_during_call == ["a:0", "a:1"]
    assert parts["c"].alive_during_call == ["a:1", "b:0", "b:1"]  # a:0 is freed
    assert parts["d"].alive_during_call == ["b:1", "c:0"]  # b:1 is an output of the model


def test_an_unused_output_is_freed_at_once() -> None:
    unused = Partitions((partition("a", ["input:0"], 2), partition("b", ["a:1"], 1)), ("b:0",))
    _, parts = run(unused, 1)
    assert parts["b"].alive_during_call == ["a:1"]


def test_weights_can_be_inputs_of_parts_and_outputs() -> None:
    partitions = Partitions((partition("a", ["weight:7", "input:0"], 1),), ("a:0", "weight:2"))
    assert value_weight_slots(partitions) == {2, 7}
    results, parts = run(partitions, 1, {7: Value("w7"), 2: Value("w2")})
    assert results == ["a:0", "w2"] and parts["a"].inputs_of_call == ["w7", "input:0"]


def test_a_model_without_parts_returns_its_inputs() -> None:
    assert run(Partitions((), ("input:1", "input:0")), 2)[0] == ["input:1", "input:0"]


def test_a_weight_that_is_an_output_is_copied() -> None:
    """Otherwise a caller that writes to the result would change the weight."""
    partitions = Partitions((partition("a", ["input:0"], 1),), ("weight:3", "a:0"))
    parts = {"a": FakePart("a", 1, weakref.WeakSet())}
    stitched = StitchedParts(
        partitions, parts, {3: Value("weight")}, 1, lambda value, stream: Value(f"copy of {value.name}")
    )
    assert [value.name for value in stitched([Value("input:0")], CALL)] == ["copy of weight", "a:0"]
