"""Let ``as_strided`` read the tensor that owns the memory.

``as_strided`` reads the memory of its input, and ONNX has no memory: the translation reads the elements of the input in
their order. So the result is right only if the input begins its memory and is contiguous. An input that is a view of such a
tensor (a transpose, a slice) is replaced by this tensor.
"""

from __future__ import annotations

from typing import Any

import torch

from trtbuild.errors import SourceError
from trtbuild.stages.lower.operators.calls import argument_of, change_calls
from trtbuild.stages.lower.propagate import propagate
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
_TARGETS = frozenset((_aten.as_strided.default, _aten.as_strided_copy.default))
#: Operators whose result is always a view of their first input.
_VIEWS = frozenset((
    "transpose", "t", "permute", "slice", "select", "unsqueeze", "squeeze", "expand", "view", "diagonal", "unfold", "alias",
    "detach",
))  # fmt: skip
#: Operators whose result is a view of a contiguous input.
_RESHAPES = frozenset(("reshape", "_unsafe_view", "contiguous"))


def read_owners(program: Program, request: Request) -> Program:
    """Return `program`, in which no ``as_strided`` reads a view. Raises SourceError, code ``strides``, if the order of the
    elements in memory is not known."""
    return change_calls(program, _TARGETS, _read_owner)


def _read_owner(node: torch.fx.Node) -> None:
    owner = source = node.args[0]
    while _is_view(owner):
        owner = owner.args[0]
    offset = argument_of(node, 3, "storage_offset", None)
    if offset is None:
        offset = source.meta["val"].storage_offset()
    memory = owner.meta["val"]
    if not isinstance(offset, int) or memory.storage_offset() != 0 or not _is_contiguous(memory):
        raise SourceError(
            "the model calls as_strided on a tensor whose order in memory is not known",
            code="strides",
            hint="call .contiguous() before as_strided, or select the elements by slices and indices",
        )
    node.args = (owner, *node.args[1:3], offset)
    node.kwargs = {name: value for name, value in node.kwargs.items() if name != "storage_offset"}
    propagate(node)


def _is_view(node: torch.fx.Node) -> bool:
    """Whether the result of a call certainly has the memory of its first input."""
    name = getattr(node.target, "_opname", "") if node.op == "call_function" else ""
    return name in _VIEWS or (name in _RESHAPES and _is_contiguous(node.args[0].meta["val"]))


def _is_contiguous(tensor: torch.Tensor) -> bool:
    """Whether the elements are in row-major order, without gaps."""
    expected: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        # expressions instead of SymInts: comparing SymInts would add guards to the program's symbols
        length = size.node.expr if isinstance(size, torch.SymInt) else size
        if length != 1 and (stride.node.expr if isinstance(stride, torch.SymInt) else stride) != expected:
            return False
        expected = expected * length
    return True
