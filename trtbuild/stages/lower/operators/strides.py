"""Let ``as_strided`` read the tensor that owns the memory.

``as_strided`` reads the memory of its input. The ONNX translation reads the elements of the input in their order. The two
agree only if the input is contiguous, starts where its memory starts, and has all elements that are read. If the input is
a view of such a tensor (a transpose, a slice, a piece of a split), this pass replaces it by this tensor, the owner.

The owner is contiguous in the trace. But PyTorch may run the program with an input of other strides, such as a transpose.
So ``as_strided`` reads a contiguous copy of the owner.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from trtbuild.errors import SourceError
from trtbuild.stages.lower.operators.calls import argument_of, change_calls, insert_call
from trtbuild.stages.lower.propagate import propagate
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
AS_STRIDED = frozenset((_aten.as_strided.default, _aten.as_strided_copy.default))
#: Operators whose result is always a view of their first input.
_VIEWS = frozenset((
    "transpose", "t", "permute", "slice", "select", "unsqueeze", "squeeze", "expand", "view", "diagonal", "unfold", "alias",
    "detach", "as_strided",
))  # fmt: skip
#: Operators that return several results, which are always views of their first input.
_SPLITS = frozenset(("split", "split_with_sizes", "tensor_split", "chunk", "unbind", "unsafe_split", "unsafe_chunk"))
#: Operators whose result is a view if their input is contiguous.
_RESHAPES = frozenset(("reshape", "_unsafe_view", "contiguous"))
#: Operators that the functional form may have in place of a view, or of an operator that may return its input. All
#: operators whose names end with ``_copy`` are such operators, too.
_COPIES = frozenset(("clone", "copy", "to", "gather", "index", "index_select"))


def read_owners(program: Program, request: Request) -> Program:
    """Return `program`, in which each ``as_strided`` reads a contiguous tensor with all elements that it needs.

    Raises SourceError, code ``strides``, if such a tensor is not found.
    """
    return change_calls(program, AS_STRIDED, _read_owner)


def _read_owner(node: torch.fx.Node) -> None:
    owner = source = node.args[0]
    while (viewed := _viewed(owner)) is not None:
        owner = viewed
    offset = argument_of(node, 3, "storage_offset", None)
    if offset is None:
        offset = source.meta["val"].storage_offset()
    memory = owner.meta["val"]
    is_known = isinstance(offset, int) and memory.storage_offset() == 0 and _is_contiguous(memory)
    sizes, strides = argument_of(node, 1, "size", None), argument_of(node, 2, "stride", None)
    if not is_known or not (_owns_memory(owner) or _has_elements(memory, sizes, strides, offset)):
        raise SourceError(
            "the model calls as_strided on a tensor whose order in memory is not known",
            code="strides",
            hint="call .contiguous() before as_strided, or select the elements by slices and indices",
        )
    copy = insert_call(node, _aten.clone.default, owner, memory_format=torch.contiguous_format)
    node.args = (copy, sizes, strides, offset)
    node.kwargs = {}
    propagate(node)


def _viewed(node: torch.fx.Node) -> torch.fx.Node | None:
    """The tensor of which `node` certainly is a view, or None."""
    if node.op != "call_function":
        return None
    source = node.args[0]
    if node.target is operator.getitem:
        return source.args[0] if getattr(source.target, "_opname", "") in _SPLITS else None
    name = getattr(node.target, "_opname", "")
    if node.target is _aten.view.dtype:  # the elements have another size
        return None
    return source if name in _VIEWS or (name in _RESHAPES and _is_contiguous(source.meta["val"])) else None


def _owns_memory(node: torch.fx.Node) -> bool:
    """Whether a value certainly has all elements of the memory that the user's model reads.

    The functional form has copies in place of some views and of operators that may return their input (``diagonal``,
    ``dropout``). Such a copy may have fewer elements than the memory of the input. (PyTorch itself rejects a read
    beyond the memory.)
    """
    if node.op == "placeholder":
        return True
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if target._opname in _COPIES or target._opname.endswith("_copy"):
        return False
    is_composite = target.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    return not is_composite and all(result.alias_info is None for result in target._schema.returns)


def _has_elements(memory: torch.Tensor, shape: Sequence[Any], strides: Sequence[Any], offset: int) -> bool:
    """Whether a contiguous tensor certainly has all elements that ``as_strided`` reads."""
    sizes = [size.meta["val"] if isinstance(size, torch.fx.Node) else size for size in (*shape, *strides)]
    pairs = zip(sizes[: len(shape)], sizes[len(shape) :], strict=True)
    last = offset + sum((size - 1) * stride for size, stride in pairs)
    return bool(statically_known_true(last < memory.numel()))


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
