"""Remove operators that return their input.

Rules
1. Only the operators in `IDENTITIES` are removed, and only if result and input have the same dtype, device, shape and
   strides. Strides count because a later ``view`` may depend on them.
2. A copy is the same as its source, because no operator changes a tensor in place after functionalization.
3. A copy that is an output stays if its source is a placeholder or another output.
4. A copy that ``as_strided`` reads stays, because it is contiguous in every call (`read_owners`).
"""

from __future__ import annotations

from typing import Any

import torch

from trtbuild.stages.lower.operators.strides import AS_STRIDED
from trtbuild.stages.lower.propagate import expressions
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten

#: Operator → the code of the model, or the pass, that creates the operator.
IDENTITIES = {
    _aten.clone.default: "dropout in evaluation mode, .clone(), and .contiguous() of a contiguous tensor",
    _aten.alias.default: "functionalization",
    _aten.detach.default: "`.detach()`; an engine has no gradients",
    _aten.detach_.default: "`.detach()` of a constant",
    _aten.lift_fresh_copy.default: "torch.tensor(…) in the model's code",
    _aten._to_copy.default: "`.to()` and `.float()` of a tensor that has the dtype already",
}


def drop_identities(program: Program, request: Request) -> Program:
    for module in program.exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            _drop_from_graph(module.graph)
            module.graph.eliminate_dead_code()
            module.recompile()
    program.rename_outputs()
    return program


def _drop_from_graph(graph: torch.fx.Graph) -> None:
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in IDENTITIES:
            continue
        if any(reader.target in AS_STRIDED for reader in node.users):
            continue
        (source,) = node.args[:1]
        if not _are_interchangeable(source.meta.get("val"), node.meta.get("val")):
            continue
        outputs = graph.output_node().all_input_nodes
        if node in outputs and (source.op != "call_function" or source in outputs):
            continue
        node.replace_all_uses_with(source)
        graph.erase_node(node)


def _are_interchangeable(first: Any, second: Any) -> bool:
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return False
    if first.dtype != second.dtype or first.device != second.device or first.layout != second.layout:
        return False
    if first.layout is not torch.strided:
        return False
    return expressions(first.shape) == expressions(second.shape) and expressions(first.stride()) == expressions(
        second.stride()
    )
