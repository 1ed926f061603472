"""Replace splits along dynamic axes by slices."""

from __future__ import annotations

import operator
import sys

import torch

_aten = torch.ops.aten


def slice_used_pieces(graph: torch.fx.Graph) -> None:
    """Replace splits along a dynamic axis by slices, in two cases. This changes `graph`.

    1. The pieces have a fixed size, and the graph does not use all of them. The graph has the number of pieces of
       the example call. On a shorter axis, the declared size of an unused piece may be negative (``s - 6`` for s = 4).
       torch.export.load rejects such a program (torch 2.13).
    2. The pieces have a dynamic size (``torch.chunk``). Such a split cannot be converted to ONNX, because onnxscript's
       optimizer fails (0.7.2). torch.export has checked that the number of pieces is the same at every size.
    """
    for node in graph.find_nodes(op="call_function", target=_aten.split.Tensor):
        source, piece_size, axis = node.args[0], node.args[1], _split_axis(node)
        if not isinstance(source.meta["val"].shape[axis], torch.SymInt):
            continue
        count = len(node.meta["val"])
        used_indices = {user.args[1] for user in node.users}
        if isinstance(piece_size, int) and len(used_indices) == count:
            continue
        for piece in list(node.users):
            index = piece.args[1]
            is_last = index == count - 1 and not isinstance(piece_size, int)
            with graph.inserting_before(piece):
                start = _multiple(graph, piece_size, index)
                end = sys.maxsize if is_last else _multiple(graph, piece_size, index + 1)
                sliced = graph.call_function(_aten.slice.Tensor, (source, axis, start, end))
            sliced.meta = piece.meta
            piece.replace_all_uses_with(sliced)
            graph.erase_node(piece)
        graph.erase_node(node)


def _multiple(graph: torch.fx.Graph, size: torch.fx.Node | int, factor: int) -> torch.fx.Node | int:
    if isinstance(size, int):
        return size * factor
    if factor in (0, 1):
        return size if factor else 0
    product = graph.call_function(operator.mul, (size, factor))
    product.meta = {"val": size.meta["val"] * factor}
    return product


def _split_axis(split: torch.fx.Node) -> int:
    axis = split.args[2] if len(split.args) > 2 else split.kwargs.get("dim", 0)
    assert isinstance(axis, int)
    return axis
