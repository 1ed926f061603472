"""Remove operators that return their input.

Rules
1. Only listed operators are removed, and only if result and input have the same dtype, device, shape and strides. Strides
   count because a later ``view`` may depend on the strides of a copy.
2. After functionalization nothing is mutated, so inside the graph a copy is the same as its source.
3. A copy that is an output stays if the output would otherwise be an input, a constant, or equal to another output.
"""

from __future__ import annotations

from typing import Any

import torch

from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten

#: Operator → the code that it comes from.
IDENTITIES = {
    _aten.clone.default: "dropout in evaluation mode, .clone(), and .contiguous() of a contiguous tensor",
    _aten.alias.default: "functionalization",
    _aten.detach.default: "`.detach()`; an engine has no gradients",
    _aten.detach_.default: "`.detach()` of a constant",
    _aten.lift_fresh_copy.default: "torch.tensor(…) in the model's code",
    _aten._to_copy.default: "`.to()` and `.float()` of a tensor that has the dtype already",
}


def drop_identities(program: Program, request: Request) -> Program:
    """Return `program`, nested graphs included, without operators that return their input."""
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


def _same_layout(first: Any, second: Any) -> bool:
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return False
    if first.dtype != second.dtype or first.device != second.device or first.layout != second.layout:
        return False
    if first.layout is not torch.strided:
        return False
    return _sizes(first.shape) == _sizes(second.shape) and _sizes(first.stride()) == _sizes(second.stride())


def _sizes(sizes: Any) -> list[Any]:
    # expressions instead of SymInts: comparing SymInts would add guards to the program's symbols
    return [size.node.expr if isinstance(size, torch.SymInt) else size for size in sizes]


def _rename_outputs(program: Program) -> None:
    for spec, node in zip(program.exported.graph_signature.output_specs, program.output_nodes, strict=True):
        spec.arg.name = node.name
