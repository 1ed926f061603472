"""Run the partitions of a package in order, and pass values from one to the next.

Rules
1. Values stay on the device, and are not copied between parts.
2. A value is freed as soon as no part needs it, so that later values can use its memory.
3. A call does not look up names: each value has a position in a list, which is computed once.
4. A weight that is an output of the model is copied, because the caller may write to it.
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
        """Compute the outputs for inputs on the call's device. The GPU may still be computing when this returns."""
        ...


@dataclass(frozen=True)
class _Step:
    """A part, and the positions of its inputs and outputs. `freed` has the positions of the values that are freed after
    the part has run."""

    part: Part
    inputs: tuple[int, ...]
    outputs: slice
    freed: tuple[int, ...]


class StitchedParts:
    """All parts of a package, which run in order.

    `parts` maps the name of a partition to its part. `weights` maps a slot (the number of a weight) to the weight, for the
    slots of `value_weight_slots`. `copy_array(array, stream)` copies an array. Without it, rule 4 does not apply.
    """

    def __init__(
        self,
        partitions: Partitions,
        parts: Mapping[str, Part],
        weights: Mapping[int, Array],
        input_count: int,
        copy_array: Callable[[Array, int], Array] | None = None,
    ) -> None:
        self.parts = parts
        self._copy_array = copy_array

        # Value → its position in the list: inputs, then weights, then the outputs of all parts.
        positions = {f"input:{number}": number for number in range(input_count)}
        self._weights: list[Array] = []
        for slot in sorted(value_weight_slots(partitions)):
            positions[f"weight:{slot}"] = len(positions)
            self._weights.append(weights[slot])
        for partition in partitions.partitions:
            for number in range(len(partition.outputs)):
                positions[f"{partition.name}:{number}"] = len(positions)
        self._computed_count = len(positions) - input_count - len(self._weights)
        self._outputs = tuple(positions[source] for source in partitions.outputs)
        #: The numbers of the model's outputs that are weights (rule 4).
        self._weight_outputs = [
            number for number, source in enumerate(partitions.outputs) if source.startswith("weight:")
        ]

        # Position of a value → the last step that needs the value. The model's outputs are not freed.
        last_use: dict[int, int] = {}
        for step_number, partition in enumerate(partitions.partitions):
            for source, _ in partition.inputs:
                last_use[positions[source]] = step_number
            for number in range(len(partition.outputs)):
                last_use.setdefault(positions[f"{partition.name}:{number}"], step_number)  # a value without readers
        for position in self._outputs:
            last_use.pop(position, None)

        self._steps = []
        for step_number, partition in enumerate(partitions.partitions):
            first = positions.get(f"{partition.name}:0", len(positions))
            self._steps.append(
                _Step(
                    parts[partition.name],
                    tuple(positions[source] for source, _ in partition.inputs),
                    slice(first, first + len(partition.outputs)),
                    tuple(position for position, last in last_use.items() if last == step_number),
                )
            )
        #: Whether there is only one part, with the inputs and outputs of the model, in the same order.
        self.is_one_part = (
            len(self._steps) == 1
            and self._steps[0].inputs == tuple(range(input_count))
            and self._outputs == tuple(range(*self._steps[0].outputs.indices(len(positions))))
        )

    def __call__(self, inputs: Sequence[Array], call: Call) -> Sequence[Array]:
        """Compute the model's flat outputs. The caller has checked `inputs`."""
        if self.is_one_part:
            return self._steps[0].part(inputs, call)
        values: list[Array] = [*inputs, *self._weights, *[None] * self._computed_count]
        del inputs
        for step in self._steps:
            values[step.outputs] = step.part([values[position] for position in step.inputs], call)
            for position in step.freed:
                values[position] = None
        outputs = [values[position] for position in self._outputs]
        if self._copy_array is not None:
            for number in self._weight_outputs:
                outputs[number] = self._copy_array(outputs[number], call.stream)
        return outputs


def value_weight_slots(partitions: Partitions) -> set[int]:
    """Return the slots of the weights that a partition reads like an input, or that the model returns."""
    sources = [source for partition in partitions.partitions for source, _ in partition.inputs]
    return {int(ref.removeprefix("weight:")) for ref in (*sources, *partitions.outputs) if ref.startswith("weight:")}
