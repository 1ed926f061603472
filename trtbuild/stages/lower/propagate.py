"""The fake value of a node that a pass made or changed, from the values of its inputs.

Only such nodes are run again: running a node whose size depends on data would make a second symbol for one size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


def propagate(node: torch.fx.Node) -> None:
    """Set ``node.meta["val"]``. Raises what the operator raises for these dtypes and shapes."""
    mode = _mode(node.graph)
    args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), _value)
    if mode is None:
        node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]
        return
    with mode:
        node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]


def _value(node: torch.fx.Node) -> Any:
    return node.meta["val"]


def _mode(graph: torch.fx.Graph) -> FakeTensorMode | None:
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return None
