"""Run the partitions of a package in order. Values pass from part to part unchanged, and are freed after their last use.

Rules
1. Values stay on the device, and are not copied. A part gets the inputs of its partition, in order.
2. A value is freed as soon as no part needs it, so that later values can use its memory.
3. A call does not look up names. The positions of values in a list are computed once, when the parts are joined.
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
        """Compute the outputs for inputs on the call's device. The work on the call's stream may end after the return."""
        ...


@dataclass(frozen=True)
class _Step:
    """A part, with the positions of its inputs and of its outputs. `freed` are the positions of the values that are freed
    after the part has run."""

    part: Part
    inputs: tuple[int, ...]
    outputs: slice
    freed: tuple[int, ...]


class StitchedParts:
    """All parts of a package, which run in order.

    `parts` has the part of each partition, by the partition's name. `weights` has the weights of `value_weight_slots`, by
    slot (the number of a weight). `input_count` is the number of the model's inputs. `copy_array(array, stream)` copies an
    array. Without it, rule 4 does not apply.
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

        # The position of each value in the list of a call: inputs, then weights, then the outputs of all parts.
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
        self._weight_outputs = [
            number for number, source in enumerate(partitions.outputs) if source.startswith("weight:")
        ]

        # The position of each value → the last step that needs it. The model's outputs are not freed.
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
        #: Whether there is only one part, and it has the same inputs and outputs as the model, in the same order.
        self.is_one_part = (
            len(self._steps) == 1
            and self._steps[0].inputs == tuple(range(input_count))
            and self._outputs == tuple(range(*self._steps[0].outputs.indices(len(positions))))
        )

    def __call__(self, inputs: Sequence[Array], call: Call) -> Sequence[Array]:
        """Compute the model's outputs, as a flat sequence. The caller has checked `inputs`."""
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
    """Return the slots of the weights that a partition reads like an input, or that are outputs of the model."""
    sources = [source for partition in partitions.partitions for source, _ in partition.inputs]
    return {int(ref.removeprefix("weight:")) for ref in (*sources, *partitions.outputs) if ref.startswith("weight:")}
