"""Search and sort infinities so that TensorRT gives their indices.

TensorRT's TopK starts its search of the largest numbers with -inf (of the smallest numbers, with inf). An element that is
equal to this start gets the index -1 (measured with TensorRT 8.6 on an H200). For example, the topk of
``[1, -inf, -inf, 2]`` has the indices ``[3, 0, -1, -1]``. Masked scores are such elements. ONNX's ArgMax and ArgMin become
TopK, too.

Rules
1. If the model reads the indices that a call gives, the operand `x` of the call becomes ``max(x, lowest)``, or
   ``min(x, largest)`` if the smallest numbers come first. Then -inf and the lowest finite number (inf and the largest
   one) have no order among themselves.
2. The values of `topk` and `sort` are read from `x` at the indices. The values of ``max(dim)`` and ``min(dim)`` are
   computed by another call (``amax``, ``amin``).
3. The results of softmax and sigmoid are finite, so their searches do not change.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from trtbuild.stages.lower.modules import set_stack, stack_of
from trtbuild.stages.lower.operators.calls import argument_of, change_calls, insert_call, replace
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program
from trtbuild.stages.topk_limit import may_exceed_topk_limit

_aten = torch.ops.aten
_INDEX_SEARCHES = frozenset((_aten.argmax.default, _aten.argmin.default))
#: Operator → an operator that gives its values only.
_PAIR_SEARCHES = {_aten.max.dim: _aten.amax.default, _aten.min.dim: _aten.amin.default}
_SORTS = frozenset((_aten.sort.default, _aten.topk.default))
_FINITE = frozenset((_aten._softmax.default, _aten.softmax.int, _aten._safe_softmax.default, _aten.sigmoid.default))


def order_finite_keys(program: Program, request: Request) -> Program:
    program = change_calls(program, _PAIR_SEARCHES, _search_pairs)
    program = change_calls(program, _SORTS, _sort)
    return change_calls(program, _INDEX_SEARCHES, _search)


def _search(node: torch.fx.Node) -> None:
    if _may_be_infinite(node.args[0]):
        node.args = (_finite(node, largest_first=node.target is _aten.argmax.default), *node.args[1:])


def _search_pairs(node: torch.fx.Node) -> None:
    source, axis, keepdim = node.args[0], node.args[1], argument_of(node, 2, "keepdim", False)
    readers = _readers(node)
    if not _may_be_infinite(source) or not any(reader.args[1] for reader in readers):
        return  # the model reads the values only, and they are right
    node.args = (_finite(node, largest_first=node.target is _aten.max.dim), *node.args[1:])
    for reader in readers:
        if not reader.args[1]:
            replace(reader, insert_call(reader, _PAIR_SEARCHES[node.target], source, [axis], keepdim))


def _sort(node: torch.fx.Node) -> None:
    source: Any = node.args[0]
    if not _may_be_infinite(source) or not source.meta["val"].dim():
        return
    readers = _readers(node)
    if not any(reader.args[1] for reader in readers):
        return  # the model reads the values only, and they are right
    if node.target is _aten.topk.default:
        count: Any = node.args[1]
        axis, largest_first = argument_of(node, 2, "dim", -1), argument_of(node, 3, "largest", True)
    else:
        axis, largest_first = argument_of(node, 1, "dim", -1), argument_of(node, 2, "descending", False)
        count = source.meta["val"].shape[axis]
    if may_exceed_topk_limit(count):
        return  # the call stays in PyTorch
    node.args = (_finite(node, largest_first=largest_first), *node.args[1:])
    indices = insert_call(node.next, operator.getitem, node, 1)
    set_stack(indices, stack_of(node))  # the next node may belong to another module
    for reader in readers:
        if reader.args[1]:
            replace(reader, indices)
        else:
            replace(reader, insert_call(reader, _aten.gather.default, source, axis, indices))


def _readers(node: torch.fx.Node) -> list[Any]:
    """The calls that take one result of `node`."""
    return [reader for reader in node.users if reader.target is operator.getitem]


def _may_be_infinite(source: Any) -> bool:
    return bool(source.meta["val"].dtype.is_floating_point) and source.target not in _FINITE


def _finite(node: torch.fx.Node, *, largest_first: bool) -> torch.fx.Node:
    """The operand of `node`, without the infinity that TensorRT does not find (rule 1)."""
    source: Any = node.args[0]
    dtype = source.meta["val"].dtype
    limits = torch.finfo(dtype)
    bound = insert_call(node, _aten.full.default, [], limits.min if largest_first else limits.max, dtype=dtype)
    return insert_call(node, _aten.maximum.default if largest_first else _aten.minimum.default, source, bound)
