"""Replace uninitialized memory (``torch.empty``) by zeros.

``torch.empty`` returns the values that are in memory. They differ between an engine and PyTorch. A model that overwrites
them before it reads them returns the same result with zeros. So this pass writes zeros, as the exporter's translation does.

``rrelu`` uses uninitialized memory for its noise. Outside of training it adds no noise, so it becomes a leaky_relu.
"""

from __future__ import annotations

import operator

import torch

from trtbuild.stages.lower.modules import set_stack, stack_of
from trtbuild.stages.lower.propagate import propagate
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
#: Operator → the operator that writes zeros, with the same arguments except `memory_format`.
ZEROS = {
    _aten.empty.memory_format: _aten.zeros.default,
    _aten.empty_like.default: _aten.zeros_like.default,
    _aten.new_empty.default: _aten.new_zeros.default,
}
_RRELU = getattr(_aten.rrelu_with_noise_functional, "default", None)


def write_zeros(program: Program, request: Request) -> Program:
    for module in program.exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in list(module.graph.nodes):
                if node.op == "call_function" and node.target is _RRELU:
                    _replace_by_leaky_relu(node)
            for node in module.graph.nodes:
                if node.op == "call_function" and node.target in ZEROS:
                    node.target = ZEROS[node.target]
                    node.kwargs = {key: value for key, value in node.kwargs.items() if key != "memory_format"}
            module.graph.eliminate_dead_code()
            module.recompile()
    return program


def _replace_by_leaky_relu(node: torch.fx.Node) -> None:
    arguments = dict(zip(("self", "noise", "lower", "upper", "training"), node.args, strict=False)) | dict(node.kwargs)
    lower, upper = arguments.get("lower", 0.125), arguments.get("upper", 1 / 3)
    if arguments.get("training", False) or not isinstance(lower, int | float) or not isinstance(upper, int | float):
        return
    with node.graph.inserting_before(node):
        leaky_relu = node.graph.call_function(_aten.leaky_relu.default, (arguments["self"], (lower + upper) / 2))
        set_stack(leaky_relu, stack_of(node))
        propagate(leaky_relu)
    for user in list(node.users):
        if user.target is operator.getitem:
            user.replace_all_uses_with(leaky_relu if user.args[1] == 0 else arguments["noise"])
            node.graph.erase_node(user)
    if not node.users:
        node.graph.erase_node(node)
