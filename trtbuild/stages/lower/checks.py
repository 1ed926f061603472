"""Remove assertions from the graph: operators that only check their input.

Rules
1. Types and sizes are checked elsewhere. An engine accepts inputs of fixed types only. The optimization profiles check the
   ranges of sizes, and the trace step compares the program with eager at the smallest and the largest sizes. A user's
   ``torch._assert`` on values is lost, because an engine cannot raise errors.
2. The ranges that torch derived from an assertion stay in the program (``range_constraints``).
3. Nodes that only an assertion used are removed, too. Placeholders stay.
"""

from __future__ import annotations

import torch

from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten

#: Operator → the check that replaces it, or why there is no check.
ASSERTIONS = {
    _aten._assert_tensor_metadata.default: "dtype and device of a value: static, fixed by the graph itself",
    _aten._assert_scalar.default: "a relation of sizes: the profiles' ranges, and eager at min and max",
    _aten._assert_async.default: "a value at run time: an engine cannot raise",
    _aten._assert_async.msg: "a value at run time: an engine cannot raise",
    _aten._functional_assert_async.msg: "a value at run time: an engine cannot raise",
    _aten._functional_assert_scalar.default: "a relation of sizes: the profiles' ranges",
    _aten.sym_constrain_range.default: "kept as the program's range constraint",
    _aten.sym_constrain_range_for_size.default: "kept as the program's range constraint",
    _aten._functional_sym_constrain_range.default: "kept as the program's range constraint",
    _aten._functional_sym_constrain_range_for_size.default: "kept as the program's range constraint",
}


def drop_assertions(program: Program, request: Request) -> Program:
    for module in program.exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in reversed(module.graph.nodes):
                if node.op == "call_function" and node.target in ASSERTIONS and not node.users:
                    module.graph.erase_node(node)
            module.graph.eliminate_dead_code()
            module.recompile()
    return program
