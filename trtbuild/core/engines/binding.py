"""Weights by slot: which bytes each weight input of a traced program stands for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtbuild.core.engines.engine_job import Weight
from trtbuild.errors import SourceError


@dataclass(frozen=True)
class Slot:
    """One weight input of a program: its name in the module; `persistent` says that ``state_dict`` holds it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    persistent: bool


@dataclass(frozen=True)
class Interface:
    """What a trace tells about its program (its `interface` output)."""

    slots: tuple[Slot, ...]
    aliases: Mapping[str, str]
    inputs: tuple[Mapping[str, Any], ...]
    outputs: tuple[Mapping[str, Any], ...]
    output_tree: Any
    #: Operators from outside PyTorch that the program calls.
    operators: tuple[str, ...] = ()

    @classmethod
    def from_bytes(cls, data: bytes) -> Interface:
        """Raises ValueError, KeyError or TypeError when `data` is no such document."""
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
        )


def weights_to_json(weights: Mapping[str, Weight]) -> dict[str, object]:
    """The form of a weights table: name or slot number → dtype, shape, digest."""
    return {
        name: {"dtype": weight.dtype, "shape": list(weight.shape), "sha256": weight.sha256}
        for name, weight in weights.items()
    }


def weights_from_json(data: Any) -> dict[str, Weight]:
    """The inverse of `weights_to_json`. Raises ValueError, KeyError or TypeError for anything else."""
    if not isinstance(data, Mapping):
        raise ValueError("a weights table is an object")
    return {name: Weight(e["dtype"], tuple(e["shape"]), e["sha256"]) for name, e in data.items()}


def bind(interface: Interface, traced: Mapping[str, Weight], table: Mapping[str, Weight] | None) -> tuple[Weight, ...]:
    """The weight of each slot: from the weights file where it has the name (or a name tied to it), else from the trace.

    The trace has checked that the file's names, shapes and dtypes are the module's, so only values are left to differ.
    Raises SourceError when names that the module ties together have different values in the file, and KeyError when
    neither has a value.
    """
    tied: dict[str, list[str]] = {slot.name: [slot.name] for slot in interface.slots}
    for alias, name in interface.aliases.items():
        tied.setdefault(name, [name]).append(alias)
    bound = []
    for number, slot in enumerate(interface.slots):
        found = {name: table[name] for name in tied[slot.name] if name in table} if table is not None else {}
        if len(set(found.values())) > 1:
            names = " and ".join(sorted(found))
            raise SourceError(
                f"{names} are one tensor in the model, but have different values in the weights file",
                code="tied-weights",
                hint="save the weights from the tied module, or untie them in the model",
            )
        if found:
            bound.append(next(iter(found.values())))
        else:
            bound.append(traced[str(number)])
    return tuple(bound)


def names_of(table: Mapping[str, Weight] | None) -> Sequence[tuple[str, str, Sequence[int]]] | None:
    """Names, dtypes and shapes: what a trace's key holds of a weights file."""
    return None if table is None else [(name, w.dtype, w.shape) for name, w in sorted(table.items())]
