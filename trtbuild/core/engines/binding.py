"""Weights by slot: the values of each weight input of a traced program."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtbuild.core.engines.engine_job import Weight
from trtbuild.errors import SourceError


@dataclass(frozen=True)
class Slot:
    """One weight input of a program. `name` is its name in the module. `persistent` is whether ``state_dict`` has it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    persistent: bool


@dataclass(frozen=True)
class Interface:
    """The weights, inputs and outputs of a traced program (the `interface` output of a trace).

    `aliases` maps the names of tied weights to the name of their slot. `output_tree` is the structure of the model's
    result. `ties` are pairs of declared symbols that must be equal; the program has one symbol for both.
    """

    slots: tuple[Slot, ...]
    aliases: Mapping[str, str]
    inputs: tuple[Mapping[str, Any], ...]
    outputs: tuple[Mapping[str, Any], ...]
    output_tree: Any
    #: Operators from outside PyTorch that the program calls.
    operators: tuple[str, ...] = ()
    ties: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_bytes(cls, data: bytes) -> Interface:
        """Read an `interface` document. Raises ValueError, KeyError or TypeError for any other `data`."""
        document = json.loads(data)
        if not all(isinstance(entry, dict) for entry in [*document["inputs"], *document["outputs"]]):
            raise ValueError("inputs and outputs are objects")
        slots = tuple(
            Slot(entry["name"], entry["dtype"], tuple(entry["shape"]), entry["persistent"])
            for entry in document["weights"]
        )
        return cls(
            slots,
            document["aliases"],
            tuple(document["inputs"]),
            tuple(document["outputs"]),
            document["output_tree"],
            tuple(sorted(document.get("operators", {}))),
            tuple((int(one), int(other)) for one, other in document.get("ties", ())),
        )


def weights_to_json(weights: Mapping[str, Weight]) -> dict[str, object]:
    """The JSON of a weights table: name or slot number → dtype, shape, digest."""
    return {
        name: {"dtype": weight.dtype, "shape": list(weight.shape), "sha256": weight.sha256}
        for name, weight in weights.items()
    }


def weights_from_json(data: Any) -> dict[str, Weight]:
    """The inverse of `weights_to_json`. Raises ValueError, KeyError or TypeError for any other `data`."""
    if not isinstance(data, Mapping):
        raise ValueError("a weights table is an object")
    return {name: Weight(entry["dtype"], tuple(entry["shape"]), entry["sha256"]) for name, entry in data.items()}


def bind(interface: Interface, traced: Mapping[str, Weight], table: Mapping[str, Weight] | None) -> tuple[Weight, ...]:
    """The weight of each slot: from the weights file `table` if it has the name or a tied name, otherwise from the trace.

    The trace has already checked the names, shapes and dtypes in the file. Only the values can differ from the module's
    values. Raises SourceError if tied names have different values in the file, and KeyError if neither the file nor the
    trace has a value.
    """
    tied: dict[str, list[str]] = {slot.name: [slot.name] for slot in interface.slots}
    for alias, name in interface.aliases.items():
        tied.setdefault(name, [name]).append(alias)
    bound = []
    for number, slot in enumerate(interface.slots):
        values = {name: table[name] for name in tied[slot.name] if name in table} if table is not None else {}
        if len(set(values.values())) > 1:
            names = " and ".join(sorted(values))
            raise SourceError(
                f"{names} are one tensor in the model, but have different values in the weights file",
                code="tied-weights",
                hint="save the weights from the tied module, or untie them in the model",
            )
        if values:
            bound.append(next(iter(values.values())))
        else:
            bound.append(traced[str(number)])
    return tuple(bound)


def names_of(table: Mapping[str, Weight] | None) -> Sequence[tuple[str, str, Sequence[int]]] | None:
    """The names, dtypes and shapes in a weights file. They are in a trace's key, and the values are not."""
    return None if table is None else [(name, weight.dtype, weight.shape) for name, weight in sorted(table.items())]
