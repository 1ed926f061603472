"""Convert the result of a module to the outputs of its program: tensors, and a 0-d tensor for each number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from trtbuild.stages.trace.export.containers import first_difference
from trtbuild.stages.trace.export.leaves import ConstantLeaf, Leaf, NumberLeaf, TensorLeaf


class ResultMismatch(Exception):
    """The module returns other kinds of values than the program, or another constant. The text names the difference."""


def returned_tensors(
    result: Any, leaves: Sequence[Leaf], structure: pytree.TreeSpec | None = None
) -> list[torch.Tensor]:
    """The tensors in a module's `result`, and its numbers as 0-d tensors. `leaves` are the leaves of the program's result,
    and `structure` has its tuples and dicts.

    Raises ResultMismatch if a leaf of `result` has another kind than in `leaves`, if a constant has another value, or if
    a container has another class or other keys.
    """
    values, found_structure = pytree.tree_flatten(result)
    actual_count, expected_count = sum(map(is_tensor, values)), sum(map(is_tensor, leaves))
    if actual_count != expected_count:
        raise ResultMismatch(f"the model returns {actual_count} tensors there, not {expected_count}")
    if len(values) != len(leaves):
        raise ResultMismatch(f"the model returns {len(values)} values there, not {len(leaves)}")
    texts = None if structure is None else first_difference(found_structure, structure)
    if texts is not None:
        raise ResultMismatch(f"the model returns {texts[0]} there, not {texts[1]}")
    tensors = []
    for number, (value, leaf) in enumerate(zip(values, leaves, strict=True)):
        if is_tensor(value) != is_tensor(leaf):
            raise ResultMismatch(f"output {number} is {_kind(value)} there, not {_kind(leaf)}")
        if isinstance(leaf, ConstantLeaf):
            if not _is_same_constant(value, leaf.value):
                raise ResultMismatch(f"output {number} is {value!r:.80} there, not {leaf.value!r:.80}")
        elif isinstance(leaf, NumberLeaf):
            if type(value).__name__ != leaf.type:
                raise ResultMismatch(f"output {number} is {value!r:.80} there, not a number of type {leaf.type}")
            tensors.append(torch.scalar_tensor(value, dtype=leaf.dtype, device="cpu"))
        else:
            tensors.append(value)
    return tensors


def is_tensor(value: Any) -> bool:
    """Whether a value of a module's result, or the `Leaf` that describes one, is a tensor."""
    return isinstance(value, torch.Tensor | TensorLeaf)


def _kind(value: Any) -> str:
    return "a tensor" if is_tensor(value) else "a number or a constant"


def _is_same_constant(value: Any, constant: Any) -> bool:
    """Whether `value` equals `constant`, also in its type. True if `constant` is not a bool, an int, a float, a
    string or None, because `trtbuild.stages.trace.export.interface` rejects it in any case."""
    if not isinstance(constant, bool | int | float | str | None):
        return True
    has_same_type = all(isinstance(value, kind) == isinstance(constant, kind) for kind in (bool, float))
    return has_same_type and bool(value == constant)
