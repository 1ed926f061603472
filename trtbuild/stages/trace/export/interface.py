"""Describe a traced program's interface as JSON values: weights, inputs, outputs, symbols and the output structure."""

from __future__ import annotations

import collections
import dataclasses
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
from trtbuild.stages.trace.export.arranging import ArrangedProgram
from trtbuild.stages.trace.export.leaves import ConstantLeaf, NumberLeaf
from trtbuild.stages.trace.export.state import StateBuffer
from trtbuild.stages.trace.export.weights import ModuleWeights, Weight
from trtbuild.stages.trace.job import TraceJob

_LEAF = object()
_DICTS = (dict, collections.OrderedDict, collections.defaultdict)


def interface(
    exported: ExportedProgram,
    arranged: ArrangedProgram,
    weights: ModuleWeights,
    job: TraceJob,
    ties: Ties = (),
    state: Sequence[StateBuffer] = (),
) -> dict[str, Any]:
    """The interface of a program. `exported` is the program before `arrange_program`: it still has the output structure.

    `ties` are the pairs of declared symbols that must be equal. In `job`, the two symbols of a pair are one symbol. The
    last inputs of `job` are those of `state`, and the last outputs of the program are the new states. Raises SourceError
    for an output that a package cannot return."""
    program = arranged.program
    symbols = Symbols(program)
    tree, names = _output_structure(exported, arranged, job, bool(state))
    slots: list[Weight | StateBuffer] = [*arranged.weights, *state]
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
        "aliases": {other: w.name for w in arranged.weights for other in w.saved_names if other != w.name},
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
        **({"state": _state(arranged, state)} if state else {}),
    }


def _state(arranged: ArrangedProgram, state: Sequence[StateBuffer]) -> list[dict[str, Any]]:
    """For each state buffer: the number of the slot with its first value, and of the output with its new value."""
    outputs = arranged.outputs[-len(state) :]
    return [
        StateTensor(buffer.name, slot, output, buffer.range).to_json()
        for slot, (buffer, output) in enumerate(zip(state, outputs, strict=True), len(arranged.weights))
    ]


def _tensor_type(value: torch.Tensor, symbols: Symbols) -> dict[str, Any]:
    return {"dtype": dtype_name(value.dtype), "shape": [symbols.expression(size) for size in value.shape]}


def _output_structure(
    exported: ExportedProgram, arranged: ArrangedProgram, job: TraceJob, has_state: bool
) -> tuple[Any, list[str]]:
    """The output structure, and the name of each output that the model returns. The outputs after these are new states."""
    spec = exported.call_spec.out_spec
    if has_state:
        spec = spec.children()[0]
    positions = iter(arranged.outputs)
    leaves: list[Any] = []
    for leaf in arranged.leaves[: spec.num_leaves]:
        if isinstance(leaf, ConstantLeaf):
            leaves.append(_constant_leaf(leaf.value, job))
        elif isinstance(leaf, NumberLeaf):
            leaves.append({"kind": "number", "type": leaf.type, "index": next(positions)})
        else:
            leaves.append({"kind": "tensor", "index": next(positions)})
    names: dict[int, str] = {}
    used_names = {entry.name for entry in job.inputs}
    for path, entry in zip(_leaf_paths(spec), leaves, strict=True):
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
    """The JSON form of an output structure, given those of its leaves in order."""
    if spec.is_leaf():
        return dict(next(leaves))
    items = [_structure(child, leaves, job) for child in spec.children()]
    kind = spec.type
    if kind in (list, tuple):
        return {"kind": kind.__name__, "items": items}
    if not isinstance(kind, type):
        kind = spec.context  # for a named tuple, the context is its class
    name = f"{kind.__module__}:{kind.__qualname__}"
    keys = _keys(spec)
    if kind in _DICTS:
        _refuse_other_keys(keys, job)
        return {"kind": "dict", "keys": keys, "items": items}
    if issubclass(kind, tuple):
        return {"kind": "namedtuple", "type": name, "keys": keys, "items": items}
    none_names = _none_fields(spec)
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


def _leaf_paths(spec: pytree.TreeSpec) -> Iterator[tuple[Any, ...]]:
    """Yield the keys that lead to each leaf."""
    if spec.is_leaf():
        yield ()
        return
    for key, child in zip(_keys(spec), spec.children(), strict=True):
        yield from ((key, *path) for path in _leaf_paths(child))


def _keys(spec: pytree.TreeSpec) -> list[Any]:
    """The keys, field names or indices of a container's children.

    A class may compute with its fields when it is created. So no class is created whose context has the keys."""
    kind, context = spec.type, spec.context
    if not isinstance(kind, type):
        return list(context._fields)  # for a named tuple, the context is its class
    if kind in _DICTS:
        # the context of a dict is its keys, and that of a defaultdict is [factory, keys]
        return list(context[1] if kind is collections.defaultdict else context)
    if dataclasses.is_dataclass(kind):
        fields = {field.name for field in dataclasses.fields(kind)}
        # torch's context is [names, names of None], and that of transformers is the names
        nested = context[0] if isinstance(context, list | tuple) and context else None
        for names in (context, nested):
            if isinstance(names, list | tuple) and len(names) == spec.num_children:
                if all(isinstance(name, str) and name in fields for name in names):
                    return list(names)
    return _declared_keys(spec) or list(range(spec.num_children))


def _declared_keys(spec: pytree.TreeSpec) -> list[Any] | None:
    """The keys that the function for paths of a class returns; None without such a function, or if it fails."""
    try:
        dummy = pytree.tree_unflatten([_LEAF] * spec.num_leaves, spec)
        children = pytree.tree_leaves_with_path(dummy, is_leaf=lambda value: value is not dummy)
    except Exception:  # the class checks its fields, for example
        return None
    keys = [_key(path[0]) for path, _ in children if path]
    return keys if len(keys) == spec.num_children else None


def _none_fields(spec: pytree.TreeSpec) -> list[str]:
    """The fields of a dataclass that are None: torch has them in the context, not among the children."""
    if not dataclasses.is_dataclass(spec.type):
        return []
    match spec.context:
        case [list(), list(names)]:
            return [name for name in names if isinstance(name, str)]
    return []


def _key(entry: Any) -> Any:
    """The key, the field name or the index in an entry of a pytree path."""
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            key = getattr(entry, attribute)
            return key if isinstance(key, str | int) else str(key)
    return str(entry)


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
