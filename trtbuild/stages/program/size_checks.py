"""Insert a check of the sizes and types that each operator from outside PyTorch returns.

torch.export trusts an operator's fake implementation. If it declares a wrong size, engines are built for the wrong size.
When the program runs, `trtbuild.declared_sizes` compares the actual sizes with the declared sizes.

Rules
1. The declared sizes are computed from the sizes of the model's inputs, never from the result that is checked. A size that
   depends on data is read from an earlier tensor.
2. The first tensor with a size that depends on data determines this size, so the size is not checked in this tensor. Later
   results with this size are compared with the first tensor.
3. Calls in nested graphs are not checked.
"""

from __future__ import annotations

import operator

import torch

from trtbuild import declared_sizes
from trtbuild.stages.program.custom_operators import is_custom
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.size_nodes import SizeNodes
from trtbuild.stages.program.symbols import Symbols


def insert_size_checks(program: Program) -> None:
    """Insert the checks into the graph of `program`, in place."""
    declared_sizes.define_operator()
    graph = program.graph
    nodes = list(graph.nodes)
    with graph.inserting_before(next(node for node in nodes if node.op != "placeholder")):
        sizes = SizeNodes(graph, program.input_nodes, Symbols(program))
    for node in nodes:
        if node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor):
            call = node.args[0] if node.target is operator.getitem else node
            if isinstance(call, torch.fx.Node) and is_custom(call.target):
                node = _insert_check(graph, node, call, sizes)
            sizes.add_tensor(node)
    for node in reversed(graph.nodes):  # remove sizes that no check reads
        if node.op == "call_function" and isinstance(node.meta.get("val"), torch.SymInt) and not node.users:
            graph.erase_node(node)
    program.rename_outputs()
    program.exported.graph_module.recompile()


def _insert_check(graph: torch.fx.Graph, node: torch.fx.Node, call: torch.fx.Node, sizes: SizeNodes) -> torch.fx.Node:
    """Insert a check of `node`, a result of `call`. Returns the check, which replaces the result for all readers."""
    value = node.meta["val"]
    with graph.inserting_after(node):
        check = graph.call_function(torch.ops.trtbuild_checks.declared.default, (node,))
    node.replace_all_uses_with(check, delete_user_cb=lambda user: user is not check)
    with graph.inserting_before(check):
        declared = [sizes.size(size) for size in value.shape]
    known = [declared_sizes.UNKNOWN if size is None else size for size in declared]
    target = call.target
    name = f"{target.namespace}::{target._opname}" if isinstance(target, torch._ops.OpOverload) else str(target)
    check.args = (node, known, value.dtype, name)
    check.meta = {key: call.meta[key] for key in ("nn_module_stack",) if key in call.meta} | {"val": value}
    return check
