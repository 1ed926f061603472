"""Recompute the fake values (tensors with a dtype and sizes, without data) of nodes.

Rules
1. A node is run again only if a pass has inserted or changed it, or if the dtype, shape or strides of an input have
   changed.
2. A node that computes a size from data is never run again, because this would create a second symbol for the size. If
   such a node returns a floating-point tensor, the tensor gets the dtype of the node's first input.
3. Nested graphs are not entered, because the dtypes of their inputs do not change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

_DATA_DEPENDENT = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}


def propagate(node: torch.fx.Node) -> None:
    """Run `node` on the fake values of its inputs, and set ``node.meta["val"]``. Raises the operator's error if it does not
    accept their dtypes or shapes."""
    args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda source: source.meta["val"])
    mode = _fake_mode(node.graph)
    if mode is None:  # a graph without tensors
        node.meta["val"] = node.target(*args, **kwargs)
        return
    # without this dispatcher, which torch.export uses, too, a kernel in C++ may replace a symbol by a number
    with mode, enable_python_dispatcher():
        node.meta["val"] = node.target(*args, **kwargs)


def refresh(node: torch.fx.Node, changed: set[torch.fx.Node]) -> bool:
    """Compute the value of `node` again if the node or one of its inputs is in `changed`. Returns whether this was done.

    Higher-order operators such as ``torch.cond`` are left out. Afterwards, `changed` contains the node only if its dtype,
    shape or strides have changed.
    """
    if node.op != "call_function" or isinstance(node.target, torch._ops.HigherOrderOperator):
        return False
    if node not in changed and not any(source in changed for source in node.all_input_nodes):
        return False
    before = _layout(node.meta.get("val"))
    if _DATA_DEPENDENT & set(getattr(node.target, "tags", ())) and _depends_on_data(node.meta.get("val")):
        _set_dtype_of_input(node)
    else:
        propagate(node)
    if _layout(node.meta["val"]) == before:
        changed.discard(node)
    else:
        changed.add(node)
    return True


def _depends_on_data(value: Any) -> bool:
    return any(
        free_unbacked_symbols(list(leaf.shape)) if isinstance(leaf, torch.Tensor) else free_unbacked_symbols(leaf)
        for leaf in pytree.tree_leaves(value)
        if isinstance(leaf, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool)
    )


def _set_dtype_of_input(node: torch.fx.Node) -> None:
    value, (source, *_) = node.meta.get("val"), node.all_input_nodes
    source_value = source.meta.get("val")
    if isinstance(value, FakeTensor) and isinstance(source_value, torch.Tensor) and value.is_floating_point():
        with value.fake_mode:
            node.meta["val"] = value.to(source_value.dtype)


def _layout(value: Any) -> list[object]:
    leaves = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    sizes = [size for leaf in leaves for size in (leaf.dtype, *leaf.shape, *leaf.stride())]
    return expressions(sizes)


def expressions(sizes: Iterable[Any]) -> list[Any]:
    """Return expressions in place of SymInts, because comparing SymInts would add guards to the program's symbols."""
    return [size.node.expr if isinstance(size, torch.SymInt) else size for size in sizes]


def _fake_mode(graph: torch.fx.Graph) -> FakeTensorMode | None:
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return None
