"""Describe a traced program's interface as JSON values: weights, inputs, outputs, symbols and the output structure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram

from trtbuild.core.model.shapes import Ties
from trtbuild.core.model.state import StateTensor
from trtbuild.core.values.encoding import to_json
from trtbuild.errors import SourceError
from trtbuild.stages.program.symbols import Symbols
from trtbuild.stages.trace.examples import dtype_name
from trtbuild.stages.trace.export.containers import DICTS, class_name_of, keys_of, leaf_paths, none_fields_of
from trtbuild.stages.trace.export.finalizing import FinalProgram
from trtbuild.stages.trace.export.leaves import ConstantLeaf, NumberLeaf
from trtbuild.stages.trace.export.state import StateBuffer
from trtbuild.stages.trace.export.weights import ModuleWeights, Weight
from trtbuild.stages.trace.job import TraceJob


def interface(
    exported: ExportedProgram,
    final: FinalProgram,
    weights: ModuleWeights,
    job: TraceJob,
    ties: Ties = (),
    state: Sequence[StateBuffer] = (),
) -> dict[str, Any]:
    """The interface of a program. `exported` is the program before `finalize_program`: it still has the output structure.

    `ties` are the pairs of the manifest's symbols that must be equal. `job` has one symbol in place of each pair. The
    last inputs of `job` are those of `state`, and the last outputs of the program are the new states. Raises SourceError
    for an output that a package cannot return."""
    program = final.program
    symbols = Symbols(program)
    tree, names = _output_structure(exported, final, job, bool(state))
    slots: list[Weight | StateBuffer] = [*final.weights, *state]
    in_graph = {slot.name for slot in slots}
    inputs = [
        {"name": entry.name, "keyword": entry.keyword, **_tensor_type(node.meta["val"], symbols)}
        for entry, node in zip(job.inputs, program.input_nodes, strict=True)
    ]
    return {
        "weights": [
            {
                "name": weight.name,
                "dtype": dtype_name(weight.value.dtype),
                "shape": list(weight.value.shape),
                "persistent": weight.persistent,
            }
            for weight in slots
        ],
        "aliases": {other: w.name for w in final.weights for other in w.saved_names if other != w.name},
        "unused": [name for weight in weights.all() if weight.name not in in_graph for name in weight.saved_names],
        "inputs": inputs[: len(inputs) - len(state)],
        "outputs": [
            {"name": name, **_tensor_type(node.meta["val"], symbols)}
            for name, node in zip(names, program.output_nodes, strict=False)  # the new states have no names
        ],
        "output_tree": tree,
        "symbols": [
            {"name": s.name, "min": s.min, "max": s.max, "multiple_of": s.multiple_of} for s in job.shapes.symbols
        ],
        **({"ties": [list(pair) for pair in ties]} if ties else {}),
        **({"state": _state(final, state)} if state else {}),
    }


def _state(final: FinalProgram, state: Sequence[StateBuffer]) -> list[dict[str, Any]]:
    """For each state buffer: the number of the slot with its first value, and of the output with its new value."""
    outputs = final.outputs[-len(state) :]
    return [
        StateTensor(buffer.name, slot, output, buffer.range).to_json()
        for slot, (buffer, output) in enumerate(zip(state, outputs, strict=True), len(final.weights))
    ]


def _tensor_type(value: torch.Tensor, symbols: Symbols) -> dict[str, Any]:
    return {"dtype": dtype_name(value.dtype), "shape": [symbols.size_expression(size) for size in value.shape]}


def _output_structure(
    exported: ExportedProgram, final: FinalProgram, job: TraceJob, has_state: bool
) -> tuple[Any, list[str]]:
    """The output structure, and the name of each output that the model returns. The outputs after these are new states."""
    spec = exported.call_spec.out_spec
    if has_state:
        spec = spec.children()[0]
    positions = iter(final.outputs)
    leaves: list[Any] = []
    for leaf in final.leaves[: spec.num_leaves]:
        if isinstance(leaf, ConstantLeaf):
            leaves.append(_constant_leaf(leaf.value, job))
        elif isinstance(leaf, NumberLeaf):
            leaves.append({"kind": "number", "type": leaf.type, "index": next(positions)})
        else:
            leaves.append({"kind": "tensor", "index": next(positions)})
    names: dict[int, str] = {}
    used_names = {entry.name for entry in job.inputs}
    for path, entry in zip(leaf_paths(spec), leaves, strict=True):
        if entry["kind"] in ("tensor", "number") and entry["index"] not in names:
            names[entry["index"]] = _unique_name(_path_name(path), used_names)
    return _structure(spec, iter(leaves), job), [names[index] for index in range(len(names))]


def _constant_leaf(value: Any, job: TraceJob) -> dict[str, Any]:
    if value is None:
        return {"kind": "none"}
    if isinstance(value, bool | int | float | str):
        return {"kind": "constant", "value": to_json(value)}
    raise SourceError(
        f"the model returns a {type(value).__name__}, which is neither a tensor nor a plain constant",
        code="output",
        hint="return tensors, in tuples, lists, dicts or registered dataclasses",
        **job.place("source"),
    )


def _structure(spec: pytree.TreeSpec, leaves: Iterator[Any], job: TraceJob) -> dict[str, Any]:
    """The JSON form of an output structure. `leaves` are the JSON forms of its leaves, in order."""
    if spec.is_leaf():
        return dict(next(leaves))
    items = [_structure(child, leaves, job) for child in spec.children()]
    kind = spec.type
    if kind in (list, tuple):
        return {"kind": kind.__name__, "items": items}
    if not isinstance(kind, type):
        kind = spec.context  # for a named tuple, the context is its class
    name = class_name_of(spec)
    keys = keys_of(spec)
    if kind in DICTS:
        _refuse_other_keys(keys, job)
        return {"kind": "dict", "keys": keys, "items": items}
    if issubclass(kind, tuple):
        return {"kind": "namedtuple", "type": name, "keys": keys, "items": items}
    none_names = none_fields_of(spec)
    return {
        "kind": "dataclass",
        "type": name,
        "keys": [*keys, *none_names],
        "items": [*items, *({"kind": "none"} for _ in none_names)],
    }


def _refuse_other_keys(keys: Sequence[Any], job: TraceJob) -> None:
    """Raise SourceError if a dict has a key that a package cannot store and return."""
    for key in keys:
        if not isinstance(key, str | int):
            raise SourceError(
                f"the model returns a dict with the key {key!r:.80}, a {type(key).__name__}",
                code="output",
                hint="keys are text or whole numbers: return a dict with such keys, or a tuple",
                **job.place("source"),
            )


def _path_name(path: tuple[Any, ...]) -> str:
    """A name for the output at a path: ``boxes_0`` for ``["boxes"][0]``, ``output_0`` for ``[0]``."""
    parts = [str(key) for key in path]
    if not parts or parts[0].isdigit():
        parts = ["output", *(parts or ["0"])]
    name = re.sub(r"\W", "_", "_".join(parts))
    return f"output_{name}" if name[:1].isdigit() else name or "output"


def _unique_name(name: str, used_names: set[str]) -> str:
    result, count = name, 1
    if result in used_names:
        result = f"{name}_out"
    while result in used_names:
        count += 1
        result = f"{name}_{count}"
    used_names.add(result)
    return result
