"""Write searches in vectors (argmax, argmin, max, min) as searches in matrices of one row.

TensorRT's TopK needs two axes. ``argmax`` over all axes is also a search in a vector: the flattened tensor. If the size of
a vector depends on data, the search does not change.
"""

from __future__ import annotations

import operator

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from trtbuild.stages.lower.operators.calls import argument_of, change_calls, insert_call, replace
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
_INDEX_SEARCHES = frozenset((_aten.argmax.default, _aten.argmin.default))
_PAIR_SEARCHES = frozenset((_aten.max.dim, _aten.min.dim))


def search_vectors_as_matrices(program: Program, request: Request) -> Program:
    return change_calls(program, _INDEX_SEARCHES | _PAIR_SEARCHES, _search)


def _search(node: torch.fx.Node) -> None:
    source = node.args[0]
    value = source.meta["val"]
    has_all_axes = argument_of(node, 1, "dim", None) is None
    if not (value.dim() == 1 or (has_all_axes and value.dim() > 1)) or free_unbacked_symbols(list(value.shape)):
        return
    shape = [1] * value.dim() if argument_of(node, 2, "keepdim", False) else []
    row = insert_call(node, _aten.reshape.default, source, [1, -1])
    search = insert_call(node, node.target, row, 1)
    if node.target in _INDEX_SEARCHES:
        replace(node, insert_call(node, _aten.reshape.default, search, shape))
        return
    for reader in list(node.users):
        if reader.target is operator.getitem:
            part = insert_call(reader, operator.getitem, search, reader.args[1])
            replace(reader, insert_call(reader, _aten.reshape.default, part, shape))
    node.graph.erase_node(node)
