"""Read and set the module that a node belongs to (``nn_module_stack``).

The partition step divides the graph by module paths. If a node had the wrong module, its layer would differ from otherwise
equal layers, and would need its own engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

#: The module calls that enclose a node, outermost first. Each is (torch's key, (module path, class)).
Stack = tuple[tuple[str, tuple[str, Any]], ...]

#: torch sets this key on nodes that compute sizes.
_SIZE_MARKER = "_empty_nn_module_stack_from_metadata_hook"


def stack_of(node: torch.fx.Node) -> Stack:
    """The module calls that enclose `node`; empty for placeholders, outputs and nodes that belong to no module."""
    return tuple((node.meta.get("nn_module_stack") or {}).items())


def set_stack(node: torch.fx.Node, stack: Stack) -> None:
    """Put `node` into the module calls of `stack`."""
    node.meta["nn_module_stack"] = dict(stack)


def path_of(node: torch.fx.Node) -> str:
    """The path of the innermost module that `node` belongs to; "" for the model itself."""
    stack = stack_of(node)
    return stack[-1][1][0] if stack else ""


def common_stack(stacks: Iterable[Stack]) -> Stack:
    """The longest common beginning of `stacks`. It ends with the innermost module call that all stacks have."""
    longest, *rest = stacks
    length = len(longest)
    for stack in rest:
        length = min(length, len(stack))
        while longest[:length] != stack[:length]:
            length -= 1
    return longest[:length]


def set_missing_modules(module: torch.fx.GraphModule) -> None:
    """Set the module of each tensor node without a module. It is the innermost module that encloses all users of the node.
    If there is no such module, it is the module of the first input that has one.

    A retrace leaves two kinds of nodes without a module. The views that functionalization adds get a module here. Nodes
    that compute sizes get no module, because each partition computes its sizes itself. They only lose torch's
    `_SIZE_MARKER`.
    """
    for node in module.graph.nodes:
        if _SIZE_MARKER in (node.meta.get("nn_module_stack") or {}):
            set_stack(node, ())
    for node in reversed(module.graph.nodes):
        if node.op != "call_function" or stack_of(node) or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        stacks = [stack_of(user) for user in node.users if user.op == "call_function"]
        if stacks and len(stacks) == len(node.users):
            set_stack(node, common_stack(stacks))
    for node in module.graph.nodes:
        if node.op != "call_function" or stack_of(node) or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        set_stack(node, next((stack_of(source) for source in node.all_input_nodes if stack_of(source)), ()))
