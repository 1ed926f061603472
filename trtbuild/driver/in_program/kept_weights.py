"""Detect changed weights: compare the weights of a graph of torch.compile with those that its engines contain.

The comparison runs before every call, for every weight. For some hundred weights it may take only a few microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class KeptWeights:
    """The state of `weights` at construction. `weights` are pairs: a position among the graph's arguments, and a tensor.

    A weight has changed if the argument is another tensor, or if the tensor was written to (torch counts writes). A weight
    has also changed if its memory is at another address, because torch does not count ``parameter.data = …`` as a write.
    This object keeps the memory of the weights alive, so that no other tensor can get the same address.
    """

    def __init__(self, weights: Sequence[tuple[int, Any]]) -> None:
        self._memory = [tensor.detach() for _, tensor in weights]
        #: (position, tensor, number of writes, address).
        self._with_counted_writes: list[tuple[int, Any, int, int]] = []
        #: Inference tensors, whose writes torch does not count, and wrapper subclasses, which have no memory.
        self._special: list[tuple[int, Any, tuple[int, int]]] = []
        for position, tensor in weights:
            writes, address = _state(tensor)
            if tensor.is_inference() or not address:
                self._special.append((position, tensor, (writes, address)))
            else:
                self._with_counted_writes.append((position, tensor, writes, address))

    def have_changed(self, arguments: Sequence[Any]) -> bool:
        """Whether any weight has changed since construction."""
        for position, tensor, writes, address in self._with_counted_writes:
            if arguments[position] is not tensor or tensor._version != writes or tensor.data_ptr() != address:
                return True
        return any(
            arguments[position] is not tensor or _state(tensor) != state for position, tensor, state in self._special
        )


def _state(tensor: Any) -> tuple[int, int]:
    """Return (number of writes, address) of a tensor; 0 if torch does not count writes, or if it has no address."""
    try:
        address = int(tensor.data_ptr())
    except RuntimeError:  # a wrapper subclass, which has no memory
        address = 0
    return 0 if tensor.is_inference() else int(tensor._version), address
