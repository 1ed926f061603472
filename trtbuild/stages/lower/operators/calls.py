"""Replace single calls of a program."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from trtbuild.stages.lower.modules import set_stack, stack_of
from trtbuild.stages.lower.propagate import propagate
from trtbuild.stages.program.functional import Program


def change_calls(program: Program, targets: Collection[Any], change: Callable[[torch.fx.Node], None]) -> Program:
    """Call `change` for each node that calls one of `targets`, also in nested graphs. Returns `program`."""
    for module in program.exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in list(module.graph.nodes):
                if node.op == "call_function" and node.target in targets:
                    change(node)
            module.recompile()
    program.rename_outputs()
    return program


def insert_call(before: torch.fx.Node, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
    """Insert a call of `target` before the call `before`, with the same `nn_module_stack`. Returns the new node."""
    with before.graph.inserting_before(before):
        call = before.graph.call_function(target, args, kwargs)
    set_stack(call, stack_of(before))
    propagate(call)
    return call


def replace(node: torch.fx.Node, replacement: torch.fx.Node) -> None:
    """Replace all uses of `node` by `replacement`, and remove `node`."""
    node.replace_all_uses_with(replacement)
    node.graph.erase_node(node)


def argument_of(node: torch.fx.Node, position: int, name: str, default: Any) -> Any:
    """Return an argument of a call, by its position or its name."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)
