"""The state of a model: buffers that a call reads and writes, such as the keys and values of a KV cache.

In a traced program, each buffer is an input after all declared inputs, and its new value is an output. The runtime keeps
the new values for the next call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trtbuild.core.values.value_ranges import ValueRange


@dataclass(frozen=True)
class StateTensor:
    """A state buffer of a model.

    `name` is the buffer's name in the module. `slot` is the number of the weight that is the buffer's first value; no
    program reads this weight. `output` is the number of the program's output that is the buffer's new value. The model may
    return this output, too. `range` is the range of random values for comparisons; None for any values.
    """

    name: str
    slot: int
    output: int
    range: ValueRange | None = None

    @property
    def input_name(self) -> str:
        """The name of the buffer among the inputs of comparisons. It has a dot, so no declared input has this name."""
        return f"state.{self.name}"

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"name": self.name, "slot": self.slot, "output": self.output}
        return document if self.range is None else {**document, "range": list(self.range)}

    @classmethod
    def from_json(cls, data: Any) -> StateTensor:
        """The inverse of `to_json`. Raises ValueError if `data` has another structure."""
        if not isinstance(data, Mapping) or not isinstance(data.get("name"), str) or not data["name"]:
            raise ValueError("a state has no name")
        numbers = [data.get("slot"), data.get("output")]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError(f"the state {data['name']!r:.80} has no slot or output")
        ends = data.get("range")
        if ends is not None and not (
            isinstance(ends, list) and len(ends) == 2 and all(type(end) in (int, float) for end in ends)
        ):
            raise ValueError(f"the range of the state {data['name']!r:.80} is not valid")
        return cls(data["name"], data["slot"], data["output"], None if ends is None else (ends[0], ends[1]))


@dataclass(frozen=True)
class StateInputs:
    """The state of a model as inputs of a comparison.

    `inputs` are (name, dtype). `ranges` maps names to ranges of random values."""

    inputs: tuple[tuple[str, str], ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    ranges: Mapping[str, ValueRange] = field(default_factory=dict)

    @classmethod
    def of(cls, state: Sequence[StateTensor], types: Sequence[tuple[str, tuple[int, ...]]]) -> StateInputs:
        """The inputs for `state`. `types` are the dtype and shape of each entry."""
        return cls(
            tuple((entry.input_name, dtype) for entry, (dtype, _) in zip(state, types, strict=True)),
            tuple(shape for _, shape in types),
            {entry.input_name: entry.range for entry in state if entry.range is not None},
        )


#: A model without state.
NO_STATE = StateInputs()
