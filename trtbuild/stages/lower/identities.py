"""Operators that return their input leave the graph.

Rules
1. Only what is listed, and only where dtype, device, shape and stride of result and input are equal: a later ``view``
   may rest on the strides that a copy made.
2. Nothing mutates after functionalization, so a copy and its source cannot be told apart inside the graph.
3. At the border they can: an output that would become an input, a constant or a second name of another output keeps
   its copy.
"""

from __future__ import annotations

from typing import Any

import torch

from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten

#: Operator → where it comes from.
IDENTITIES = {
    _aten.clone.default: "dropout in evaluation mode, .clone() and .contiguous() of what is contiguous",
    _aten.alias.default: "functionalization",
    _aten.detach.default: "`.detach()`; an engine has no gradients",
    _aten.detach_.default: "`.detach()` of a constant",
    _aten.lift_fresh_copy.default: "torch.tensor(…) in the model's code",
    _aten._to_copy.default: "`.to()` and `.float()` of what already has the dtype",
}


def drop_identities(program: Program, request: Request) -> Program:
    """`program`, nested graphs too, without operators that return their input."""
    for module in program.exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            _drop(module.graph)
            module.graph.eliminate_dead_code()
            module.recompile()
    _rename_outputs(program)
    return program


def _drop(graph: torch.fx.Graph) -> None:
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in IDENTITIES:
            continue
        (source,) = node.args[:1]
        if not _same_layout(source.meta.get("val"), node.meta.get("val")):
            continue
        outputs = graph.output_node().all_input_nodes
        if node in outputs and (source.op != "call_function" or source in outputs):
            continue
        node.replace_all_uses_with(source)
        graph.erase_node(node)


def _same_layout(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    if one.dtype != other.dtype or one.device != other.device or one.layout != other.layout:
        return False
    if one.layout is not torch.strided:
        return False
    return _sizes(one.shape) == _sizes(other.shape) and _sizes(one.stride()) == _sizes(other.stride())


def _sizes(sizes: Any) -> list[Any]:
    # expressions, not SymInts: comparing those would put guards on the program's symbols
    return [size.node.expr if isinstance(size, torch.SymInt) else size for size in sizes]


def _rename_outputs(program: Program) -> None:
    for spec, node in zip(program.exported.graph_signature.output_specs, program.output_nodes, strict=True):
        spec.arg.name = node.name
