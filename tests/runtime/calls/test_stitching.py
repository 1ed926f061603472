"""Values go from part to part as they are, and are dropped after their last use."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

from trtbuild.core.partition.partitions import Partition, Partitions, TensorType
from trtbuild.runtime.calls.call import Call
from trtbuild.runtime.calls.stitching import Stitched, flowing_weights

ROWS = TensorType("float32", (["sym", 0], 4))
CALL = Call(0, (3,), 0, "cpu")


class Value:
    """A value that says what it was made of."""

    def __init__(self, name: str) -> None:
        self.name = name


class FakePart:
    """Gives `count` new values, and remembers what it took and which values were alive then."""

    def __init__(self, name: str, count: int, alive: weakref.WeakSet[Value]) -> None:
        self.name, self.count, self.alive = name, count, alive
        self.took: list[str] = []
        self.alive_then: list[str] = []

    def __call__(self, values: Sequence[Any], call: Call) -> Sequence[Any]:
        assert call is CALL
        self.took = [value.name for value in values]
        gc.collect()
        self.alive_then = sorted(value.name for value in self.alive)
        made = [Value(f"{self.name}:{number}") for number in range(self.count)]
        for value in made:
            self.alive.add(value)
        return made


def partition(name: str, inputs: Sequence[str], outputs: int) -> Partition:
    return Partition(name, "torch", "0" * 64, (), tuple((source, ROWS) for source in inputs), (ROWS,) * outputs, ())


def run(
    partitions: Partitions, inputs: int, weights: dict[int, Any] | None = None
) -> tuple[list[str], dict[str, FakePart]]:
    alive: weakref.WeakSet[Value] = weakref.WeakSet()
    parts = {part.name: FakePart(part.name, len(part.outputs), alive) for part in partitions.partitions}
    stitched = Stitched(partitions, parts, weights or {}, inputs)
    given = [Value(f"input:{number}") for number in range(inputs)]
    stitched(given, CALL)  # it leaves nothing behind for the next call
    results = stitched(given, CALL)
    return [value.name for value in results], parts


def test_one_part_that_is_the_whole_model() -> None:
    whole = Partitions((partition("model", ["input:0", "input:1"], 2),), ("model:0", "model:1"))
    results, parts = run(whole, 2)
    assert results == ["model:0", "model:1"] and parts["model"].took == ["input:0", "input:1"]


def test_one_part_that_takes_and_gives_in_another_order() -> None:
    turned = Partitions((partition("model", ["input:1", "input:0"], 2),), ("model:1", "input:0", "model:1"))
    results, parts = run(turned, 2)
    assert results == ["model:1", "input:0", "model:1"] and parts["model"].took == ["input:1", "input:0"]


def test_values_are_dropped_after_their_last_use() -> None:
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
    assert [part.took for part in parts.values()] == [["input:0"], ["a:0"], ["b:0", "a:1"], ["c:0"]]
    assert parts["b"].alive_then == ["a:0", "a:1"]
    assert parts["c"].alive_then == ["a:1", "b:0", "b:1"]  # a:0 is gone
    assert parts["d"].alive_then == ["b:1", "c:0"]  # b:1 is an output


def test_an_unused_output_is_freed_at_once() -> None:
    unused = Partitions((partition("a", ["input:0"], 2), partition("b", ["a:1"], 1)), ("b:0",))
    _, parts = run(unused, 1)
    assert parts["b"].alive_then == ["a:1"]


def test_weights_that_flow() -> None:
    fed = Partitions((partition("a", ["weight:7", "input:0"], 1),), ("a:0", "weight:2"))
    assert flowing_weights(fed) == {2, 7}
    results, parts = run(fed, 1, {7: Value("w7"), 2: Value("w2")})
    assert results == ["a:0", "w2"] and parts["a"].took == ["w7", "input:0"]


def test_no_part_at_all() -> None:
    """A model that returns its inputs."""
    assert run(Partitions((), ("input:1", "input:0")), 2)[0] == ["input:1", "input:0"]


def test_a_weight_that_is_an_output_is_copied() -> None:
    """A caller may write into what it gets."""
    cut = Partitions((partition("a", ["input:0"], 1),), ("weight:3", "a:0"))
    parts = {"a": FakePart("a", 1, weakref.WeakSet())}
    stitched = Stitched(cut, parts, {3: Value("weight")}, 1, lambda value, stream: Value(f"copy of {value.name}"))
    assert [value.name for value in stitched([Value("input:0")], CALL)] == ["copy of weight", "a:0"]
