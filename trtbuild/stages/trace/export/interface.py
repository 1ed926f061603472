"""Describe a traced program's interface as JSON: weights, inputs, outputs, symbols and the output structure."""

from __future__ import annotations

import re
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, OutputKind

from trtbuild.core.model.shapes import Ties
from trtbuild.core.values.encoding import to_json
from trtbuild.errors import SourceError
from trtbuild.stages.program.symbols import Symbols
from trtbuild.stages.trace.examples import dtype_name
from trtbuild.stages.trace.export.arranging import Arranged
from trtbuild.stages.trace.export.weights import ModuleWeights
from trtbuild.stages.trace.job import TraceJob

_NO_VALUE = object()


def interface(
    exported: ExportedProgram, arranged: Arranged, weights: ModuleWeights, job: TraceJob, ties: Ties = ()
) -> dict[str, Any]:
    """The interface of a program. `exported` is the program before `arrange`, which has the output structure. `ties` are
    the ties of the declared symbols; `job` has the symbols that are left."""
    program = arranged.program
    symbols = Symbols(program)
    tree, names = _outputs(exported, arranged, job)
    in_graph = {weight.name for weight in arranged.weights}
    return {
        "weights": [
            {
                "name": weight.name,
                "dtype": dtype_name(weight.value.dtype),
                "shape": list(weight.value.shape),
                "persistent": weight.persistent,
            }
            for weight in arranged.weights
        ],
        "aliases": {other: w.name for w in arranged.weights for other in w.saved if other != w.name},
        "unused": [name for weight in weights.all() if weight.name not in in_graph for name in weight.saved],
        "inputs": [
            {"name": entry.name, "keyword": entry.keyword, **_described(node.meta["val"], symbols)}
            for entry, node in zip(job.inputs, program.input_nodes, strict=True)
        ],
        "outputs": [
            {"name": name, **_described(node.meta["val"], symbols)}
            for name, node in zip(names, program.output_nodes, strict=True)
        ],
        "output_tree": tree,
        "symbols": [
            {"name": s.name, "min": s.min, "max": s.max, "multiple_of": s.multiple_of} for s in job.shapes.symbols
        ],
        **({"ties": [list(pair) for pair in ties]} if ties else {}),
    }


def _described(value: torch.Tensor, symbols: Symbols) -> dict[str, Any]:
    return {"dtype": dtype_name(value.dtype), "shape": [symbols.expression(size) for size in value.shape]}


def _outputs(exported: ExportedProgram, arranged: Arranged, job: TraceJob) -> tuple[Any, list[str]]:
    """The output structure, and the name of each of the program's outputs."""
    user_outputs = [spec for spec in exported.graph_signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    numbers = iter(arranged.outputs)
    leaves: list[Any] = []
    for spec in user_outputs:
        if isinstance(spec.arg, ConstantArgument):
            leaves.append(_constant(spec.arg.value, job))
        else:
            leaves.append({"kind": "tensor", "index": next(numbers)})
    spec = exported.call_spec.out_spec
    result = pytree.tree_unflatten(leaves, spec)
    paths = [path for path, _ in pytree.tree_leaves_with_path(result, is_leaf=_is_leaf)]
    names: dict[int, str] = {}
    used_names = {entry.name for entry in job.inputs}
    for path, leaf in zip(paths, leaves, strict=True):
        if leaf["kind"] == "tensor" and leaf["index"] not in names:
            names[leaf["index"]] = _unique(_path_name(path), used_names)
    return _structure(spec, iter(leaves), job), [names[index] for index in range(len(names))]


def _is_leaf(value: Any) -> bool:
    return isinstance(value, dict) and value.get("kind") in ("tensor", "none", "constant")


def _constant(value: Any, job: TraceJob) -> dict[str, Any]:
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


def _structure(spec: pytree.TreeSpec, leaves: Any, job: TraceJob) -> dict[str, Any]:
    if spec.is_leaf():
        return dict(next(leaves))
    items = [_structure(child, leaves, job) for child in spec.children()]
    kind = spec.type
    if kind in (list, tuple):
        return {"kind": kind.__name__, "items": items}
    if not isinstance(kind, type):
        kind = spec.context  # for every named tuple: its class
    name = f"{kind.__module__}:{kind.__qualname__}"
    keys = _keys(spec)
    if issubclass(kind, dict) and kind.__module__ in ("builtins", "collections"):
        _refuse_odd_keys(spec, job)
        return {"kind": "dict", "keys": keys, "items": items}
    if issubclass(kind, tuple):
        return {"kind": "namedtuple", "type": name, "keys": keys, "items": items}
    return {"kind": "dataclass", "type": name, "keys": keys, "items": items}


def _refuse_odd_keys(spec: pytree.TreeSpec, job: TraceJob) -> None:
    """Raise SourceError if a dict has keys that a package cannot store: it would return another dict."""
    context = (
        spec.context[-1] if isinstance(spec.context, tuple) else spec.context
    )  # a defaultdict also has its factory
    for key in context or ():
        if not isinstance(key, str | int):
            raise SourceError(
                f"the model returns a dict with the key {key!r:.80}, a {type(key).__name__}",
                code="output",
                hint="keys are text or whole numbers: return a dict with such keys, or a tuple",
                **job.place("source"),
            )


def _keys(spec: pytree.TreeSpec) -> list[Any]:
    """The keys or field names of a node's children."""
    dummy = pytree.tree_unflatten([_NO_VALUE] * spec.num_leaves, spec)
    children = pytree.tree_leaves_with_path(dummy, is_leaf=lambda value: value is not dummy)
    return [_key(path[0]) for path, _ in children]


def _key(entry: Any) -> Any:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            key = getattr(entry, attribute)
            return key if isinstance(key, str | int) else str(key)
    return str(entry)


def _path_name(path: tuple[Any, ...]) -> str:
    parts = [str(_key(entry)) for entry in path]
    if not parts or parts[0].isdigit():
        parts = ["output", *(parts or ["0"])]
    name = re.sub(r"\W", "_", "_".join(parts))
    return f"output_{name}" if name[:1].isdigit() else name or "output"


def _unique(name: str, taken: set[str]) -> str:
    result, count = name, 1
    if result in taken:
        result = f"{name}_out"
    while result in taken:
        count += 1
        result = f"{name}_{count}"
    taken.add(result)
    return result
