"""No value is memory that nobody wrote.

``torch.empty`` and its kin give whatever was in memory, which is another value in an engine than in PyTorch. A model that
reads such a value has no answer of its own; one that writes to all of it before has the same answer from zeros. So they are
zeros, as the exporter's translation has them.

``rrelu`` takes such a tensor for its noise, and returns it: out of training it draws none, and is a leaky_relu.
"""

from __future__ import annotations

import operator

import torch

from trtbuild.stages.lower.modules import set_stack, stack_of
from trtbuild.stages.lower.propagate import propagate
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
#: Operator → the one that writes zeros, with the same arguments.
ZEROS = {
    _aten.empty.memory_format: _aten.zeros.default,
    _aten.empty_like.default: _aten.zeros_like.default,
    _aten.new_empty.default: _aten.new_zeros.default,
}
_RRELU = getattr(_aten.rrelu_with_noise_functional, "default", None)


def write_zeros(program: Program, request: Request) -> Program:
    """`program`, nested graphs too, with zeros for memory that was not written to, and without the noise of rrelu."""
    for module in program.exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in list(module.graph.nodes):
                if node.op == "call_function" and node.target is _RRELU:
                    _as_leaky_relu(node)
            for node in module.graph.nodes:
                if node.op == "call_function" and node.target in ZEROS:
                    node.target = ZEROS[node.target]
                    node.kwargs = {key: value for key, value in node.kwargs.items() if key != "memory_format"}
            module.graph.eliminate_dead_code()
            module.recompile()
    return program


def _as_leaky_relu(node: torch.fx.Node) -> None:
    given = dict(zip(("self", "noise", "lower", "upper", "training"), node.args, strict=False)) | dict(node.kwargs)
    lower, upper = given.get("lower", 0.125), given.get("upper", 1 / 3)
    if given.get("training", False) or not isinstance(lower, int | float) or not isinstance(upper, int | float):
        return
    with node.graph.inserting_before(node):
        made = node.graph.call_function(_aten.leaky_relu.default, (given["self"], (lower + upper) / 2))
        set_stack(made, stack_of(node))
        propagate(made)
    for user in list(node.users):
        if user.target is operator.getitem:
            user.replace_all_uses_with(made if user.args[1] == 0 else given["noise"])
            node.graph.erase_node(user)
    if not node.users:
        node.graph.erase_node(node)
