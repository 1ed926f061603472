"""Find the value of each weight of a traced program, in a weights file or in the trace.

A traced program takes its weights as its first inputs. The position of a weight among them is its slot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.model.custom_operators import CustomOperator
from trtbuild.core.model.state import StateInputs, StateTensor
from trtbuild.core.values.encoding import is_digest
from trtbuild.errors import SourceError


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """One weight input of a program. `name` is the weight's name in the module.

    `persistent` is whether the module's ``state_dict`` contains the weight."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    persistent: bool


@dataclass(frozen=True)
class Interface:
    """The weights, inputs and outputs of a traced program (the `interface` output of a trace).

    A tied weight has several names in the module. `aliases` maps its other names to the name of its slot.
    `output_tree` is the nested structure of the model's result.
    """

    slots: tuple[WeightSlot, ...]
    aliases: Mapping[str, str]
    inputs: tuple[Mapping[str, Any], ...]
    outputs: tuple[Mapping[str, Any], ...]
    output_tree: Any
    #: Operators from outside PyTorch that the program calls.
    operators: tuple[CustomOperator, ...] = ()
    #: Pairs of dynamic dimensions that the model needs to be equal, by their numbers in the declared `ShapePlan`. The
    #: program has one symbol for both.
    ties: tuple[tuple[int, int], ...] = ()
    #: The buffers that a call reads and writes. Each is an input after `inputs`. Their slots are after all other slots.
    state: tuple[StateTensor, ...] = ()

    @property
    def program_slot_count(self) -> int:
        """The number of slots that the program reads as weights: all slots except those of the state."""
        return len(self.slots) - len(self.state)

    @property
    def state_inputs(self) -> StateInputs:
        """The state buffers as inputs of a comparison."""
        return StateInputs.of(
            self.state, [(self.slots[entry.slot].dtype, self.slots[entry.slot].shape) for entry in self.state]
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Interface:
        """Read an `interface` document. Raises ValueError, KeyError or TypeError if the document has another structure.

        The types of most values are not checked."""
        document = json.loads(data)
        if not all(isinstance(entry, dict) for entry in [*document["inputs"], *document["outputs"]]):
            raise ValueError("inputs and outputs are objects")
        slots = tuple(
            WeightSlot(entry["name"], entry["dtype"], tuple(entry["shape"]), entry["persistent"])
            for entry in document["weights"]
        )
        return cls(
            slots,
            document["aliases"],
            tuple(document["inputs"]),
            tuple(document["outputs"]),
            document["output_tree"],
            _operators(document),
            tuple((int(first), int(second)) for first, second in document.get("ties", ())),
            _state(document, len(slots)),
        )


def _operators(document: Mapping[str, Any]) -> tuple[CustomOperator, ...]:
    operators = tuple(map(CustomOperator.from_json, document.get("custom_operators", ())))
    if sorted(document.get("operators", {})) != [operator.name for operator in operators]:
        raise ValueError("the operators are not described: an earlier version of trtbuild traced the model")
    return operators


def _state(document: Mapping[str, Any], slot_count: int) -> tuple[StateTensor, ...]:
    state = tuple(map(StateTensor.from_json, document.get("state", ())))
    if [entry.slot for entry in state] != list(range(slot_count - len(state), slot_count)):
        raise ValueError("the slots of the state are not the last slots")
    return state


def weights_to_json(weights: Mapping[str, Weight]) -> dict[str, object]:
    """Return the JSON of a table of weights: name or slot number → dtype, shape, digest."""
    return {
        name: {"dtype": weight.dtype, "shape": list(weight.shape), "sha256": weight.sha256}
        for name, weight in weights.items()
    }


def weights_from_json(data: Any) -> dict[str, Weight]:
    """The inverse of `weights_to_json`. Raises ValueError, KeyError or TypeError if `data` has another structure."""
    if not isinstance(data, Mapping):
        raise ValueError("a table of weights is an object")
    return {name: _weight_from_json(entry) for name, entry in data.items()}


def _weight_from_json(entry: Any) -> Weight:
    """A weight of a table. Raises ValueError, KeyError or TypeError. Any machine may have stored the table."""
    weight = Weight(entry["dtype"], tuple(entry["shape"]), entry["sha256"])
    if type(weight.dtype) is not str or not is_digest(weight.sha256):
        raise ValueError("a weight has no dtype or no digest")
    if not all(type(size) is int and size >= 0 for size in weight.shape):
        raise ValueError("a weight has a size that is not a number")
    return weight


def bind_weights(
    interface: Interface, traced_weights: Mapping[str, Weight], table: Mapping[str, Weight] | None
) -> tuple[Weight, ...]:
    """Return the weight of each slot.

    `table` maps names to the weights of the weights file; it is None without such a file. `traced_weights` maps slot
    numbers to the weights of the trace. A weight comes from the file if the file has the slot's name or a tied name, and
    otherwise from the trace.

    The shapes and dtypes in the file are not checked, because the trace has checked them. Raises SourceError if tied names
    have different values in the file, and KeyError if neither the file nor the trace has a value.
    """
    names_of_slot: dict[str, list[str]] = {slot.name: [slot.name] for slot in interface.slots}
    for alias, name in interface.aliases.items():
        names_of_slot.setdefault(name, [name]).append(alias)
    table = table or {}
    weights = []
    for number, slot in enumerate(interface.slots):
        values = {name: table[name] for name in names_of_slot[slot.name] if name in table}
        if len(set(values.values())) > 1:
            names = " and ".join(sorted(values))
            raise SourceError(
                f"{names} are one tensor in the model, but have different values in the weights file",
                code="tied-weights",
                hint="save the weights from the tied module, or untie them in the model",
            )
        if values:
            weights.append(next(iter(values.values())))
        else:
            weights.append(traced_weights[str(number)])
    return tuple(weights)


def weight_types(table: Mapping[str, Weight] | None) -> Sequence[tuple[str, str, Sequence[int]]] | None:
    """The name, dtype and shape of each weight in a weights file, sorted by name; None without a weights file.

    The key of a trace has these parts of the weights, but not their values."""
    return None if table is None else [(name, weight.dtype, weight.shape) for name, weight in sorted(table.items())]
