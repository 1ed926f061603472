"""Run the partitions of a package in order. Values pass from part to part unchanged, and are dropped after their last
use.

Rules
1. Values stay on the device, and are not copied. A part gets the inputs of its partition, in order.
2. A value is dropped as soon as no part needs it, so that later values can use its memory.
3. A call does not look up names: the positions of values are computed once.
4. A weight that is an output is copied, because the caller may write to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trtbuild.core.partition.partitions import Partitions
from trtbuild.runtime.calls.call import Array, Call


class Part(Protocol):
    """One partition, ready to run."""

    def __call__(self, values: Sequence[Array], call: Call) -> Sequence[Array]:
        """Compute the outputs for inputs on the call's device. Work may still run on the call's stream."""
        ...


@dataclass(frozen=True)
class _Step:
    part: Part
    takes: tuple[int, ...]
    gives: slice
    drops: tuple[int, ...]


class Stitched:
    """All parts of a package. `weights` are those that partitions read as values, or that are outputs, by slot;
    `copied` copies an array, on a stream."""

    def __init__(
        self,
        partitions: Partitions,
        parts: Mapping[str, Part],
        weights: Mapping[int, Array],
        inputs: int,
        copied: Callable[[Array, int], Array] | None = None,
    ) -> None:
        self.parts = parts
        places = {f"input:{number}": number for number in range(inputs)}
        self._weights: list[Array] = []
        for slot in sorted(flowing_weights(partitions)):
            places[f"weight:{slot}"] = len(places)
            self._weights.append(weights[slot])
        for partition in partitions.partitions:
            for number in range(len(partition.outputs)):
                places[f"{partition.name}:{number}"] = len(places)
        last: dict[int, int] = {}
        for position, partition in enumerate(partitions.partitions):
            for source, _ in partition.inputs:
                last[places[source]] = position
            for number in range(len(partition.outputs)):
                last.setdefault(places[f"{partition.name}:{number}"], position)  # a value without readers
        self._outputs = tuple(places[source] for source in partitions.outputs)
        self._weight_outputs = [k for k, source in enumerate(partitions.outputs) if source.startswith("weight:")]
        self._copied = copied
        for place in self._outputs:
            last.pop(place, None)
        self._steps = []
        for position, partition in enumerate(partitions.partitions):
            first = places.get(f"{partition.name}:0", len(places))
            self._steps.append(
                _Step(
                    parts[partition.name],
                    tuple(places[source] for source, _ in partition.inputs),
                    slice(first, first + len(partition.outputs)),
                    tuple(place for place, end in last.items() if end == position),
                )
            )
        self._count = len(places) - inputs - len(self._weights)
        #: Whether there is one part, with the model's inputs and outputs in the same order.
        self.whole = (
            len(self._steps) == 1
            and self._steps[0].takes == tuple(range(inputs))
            and self._outputs == tuple(range(*self._steps[0].gives.indices(len(places))))
        )

    def __call__(self, inputs: Sequence[Array], call: Call) -> Sequence[Array]:
        """Compute the model's outputs, flat. `inputs` are checked already."""
        if self.whole:
            return self._steps[0].part(inputs, call)
        values: list[Array] = [*inputs, *self._weights, *[None] * self._count]
        del inputs
        for step in self._steps:
            values[step.gives] = step.part([values[place] for place in step.takes], call)
            for place in step.drops:
                values[place] = None
        outputs = [values[place] for place in self._outputs]
        if self._copied is not None:
            for number in self._weight_outputs:
                outputs[number] = self._copied(outputs[number], call.stream)
        return outputs


def flowing_weights(partitions: Partitions) -> set[int]:
    """Slots of the weights that partitions read as plain values, or that are outputs of the model."""
    sources = [source for partition in partitions.partitions for source, _ in partition.inputs]
    return {int(ref.removeprefix("weight:")) for ref in (*sources, *partitions.outputs) if ref.startswith("weight:")}
