"""The result of a module as the outputs of its program: tensors, with its numbers as 0-d tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from trtbuild.stages.trace.export.leaves import ConstantLeaf, Leaf, NumberLeaf, TensorLeaf


class OtherResult(Exception):
    """The module does not return what the program returns. The text names the difference."""


def returned_tensors(result: Any, leaves: Sequence[Leaf]) -> list[torch.Tensor]:
    """The tensors in a module's `result`, whose leaves must be those of the program, and its numbers as 0-d tensors.

    Raises OtherResult if a leaf is of another kind, or if a constant has another value.
    """
    values = pytree.tree_leaves(result)
    count, wanted = (sum(map(is_tensor, some)) for some in (values, leaves))
    if count != wanted:
        raise OtherResult(f"the model returns {count} tensors there, not {wanted}")
    if len(values) != len(leaves):
        raise OtherResult(f"the model returns {len(values)} values there, not {len(leaves)}")
    tensors = []
    for number, (value, leaf) in enumerate(zip(values, leaves, strict=True)):
        if is_tensor(value) != is_tensor(leaf):
            raise OtherResult(f"output {number} is {_kind(value)} there, not {_kind(leaf)}")
        if isinstance(leaf, ConstantLeaf):
            if not _is_same(value, leaf.value):
                raise OtherResult(f"output {number} is {value!r:.80} there, not {leaf.value!r:.80}")
        elif isinstance(leaf, NumberLeaf):
            if type(value).__name__ != leaf.type:
                raise OtherResult(f"output {number} is {value!r:.80} there, not a number of type {leaf.type}")
            tensors.append(torch.scalar_tensor(value, dtype=leaf.dtype, device="cpu"))
        else:
            tensors.append(value)
    return tensors


def is_tensor(value: Any) -> bool:
    """Whether a leaf of a module's result, or the description of one, is a tensor."""
    return isinstance(value, torch.Tensor | TensorLeaf)


def _kind(value: Any) -> str:
    return "a tensor" if is_tensor(value) else "a number or a constant"


def _is_same(value: Any, constant: Any) -> bool:
    """Whether a constant has the value of the example call. Values of other types are refused elsewhere."""
    if not isinstance(constant, bool | int | float | str | None):
        return True
    return isinstance(value, bool) == isinstance(constant, bool) and bool(value == constant)
