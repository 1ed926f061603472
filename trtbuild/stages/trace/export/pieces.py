"""Replace a split along a dynamic axis by slices."""

from __future__ import annotations

import torch

_aten = torch.ops.aten


def slice_used_pieces(graph: torch.fx.Graph) -> None:
    """Replace a split along a dynamic axis by slices if the graph does not use all pieces. This changes `graph`.

    The split has as many pieces as in the example call. At a smaller size some pieces do not exist, and their declared
    size is negative (``s - 6`` for s = 4). torch.export.load rejects a program with such a size (torch 2.13).
    """
    for node in graph.find_nodes(op="call_function", target=_aten.split.Tensor):
        source, piece_size, axis = node.args[0], node.args[1], _split_axis(node)
        is_dynamic = isinstance(source.meta["val"].shape[axis], torch.SymInt)
        used_indices = {user.args[1] for user in node.users}
        if not is_dynamic or not isinstance(piece_size, int) or len(used_indices) == len(node.meta["val"]):
            continue
        for piece in list(node.users):
            start = piece.args[1] * piece_size
            with graph.inserting_before(piece):
                sliced = graph.call_function(_aten.slice.Tensor, (source, axis, start, start + piece_size))
            sliced.meta = piece.meta
            piece.replace_all_uses_with(sliced)
            graph.erase_node(piece)
        graph.erase_node(node)


def _split_axis(split: torch.fx.Node) -> int:
    axis = split.args[2] if len(split.args) > 2 else split.kwargs.get("dim", 0)
    assert isinstance(axis, int)
    return axis
