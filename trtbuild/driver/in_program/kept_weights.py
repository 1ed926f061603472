"""Detect whether the weights of a graph of torch.compile have changed since its engines were built.

This check runs before every call. It must take much less than a millisecond for a few hundred weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class KeptWeights:
    """The weights of a graph, and their state at construction.

    `weights` are pairs: (position of a weight among the graph's arguments, its tensor). A weight has changed if the
    argument is another tensor, or if the tensor was written to (torch counts writes). The address of the tensor's memory is
    compared, too, because torch does not count ``parameter.data = …`` as a write. This object keeps the memory of the
    weights alive, so that no other tensor can get the same address.
    """

    def __init__(self, weights: Sequence[tuple[int, Any]]) -> None:
        self._memory = [tensor.detach() for _, tensor in weights]
        #: (position, tensor, number of writes, address).
        self._with_counted_writes: list[tuple[int, Any, int, int]] = []
        #: (position, tensor, (number of writes, address)) of inference tensors, whose writes torch does not count, and of
        #: tensors without memory, such as wrapper subclasses.
        self._others: list[tuple[int, Any, tuple[int, int]]] = []
        for position, tensor in weights:
            writes, address = _writes_and_address(tensor)
            if tensor.is_inference() or not address:
                self._others.append((position, tensor, (writes, address)))
            else:
                self._with_counted_writes.append((position, tensor, writes, address))

    def have_changed(self, arguments: Sequence[Any]) -> bool:
        for position, tensor, writes, address in self._with_counted_writes:
            if arguments[position] is not tensor or tensor._version != writes or tensor.data_ptr() != address:
                return True
        return any(
            arguments[position] is not tensor or _writes_and_address(tensor) != state
            for position, tensor, state in self._others
        )


def _writes_and_address(tensor: Any) -> tuple[int, int]:
    """Return (number of writes, address) of a tensor. A number that torch does not know is 0."""
    try:
        address = int(tensor.data_ptr())
    except RuntimeError:  # a wrapper subclass, which has no memory
        address = 0
    return 0 if tensor.is_inference() else int(tensor._version), address
