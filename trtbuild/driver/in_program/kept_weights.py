"""Detect changed weights: compare the weights of a graph of torch.compile with those that its engines contain.

This runs before every call, for every weight. For some hundred weights it may take only a few microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class KeptWeights:
    """The state of `weights` at construction; each comes with its position among the graph's arguments.

    A weight has changed if the argument is another tensor, if the tensor was written to (torch counts writes), or if its
    memory is at another address (``parameter.data = …`` does not count as a write). This object keeps the memory of the
    weights alive, so that no other tensor can get the same address.
    """

    def __init__(self, weights: Sequence[tuple[int, Any]]) -> None:
        self._memory = [value.detach() for _, value in weights]
        #: (position, tensor, number of writes, address).
        self._usual: list[tuple[int, Any, int, int]] = []
        #: Inference tensors, whose writes torch does not count, and wrapper subclasses, which have no memory.
        self._unusual: list[tuple[int, Any, tuple[int, int]]] = []
        for position, value in weights:
            writes, place = _state(value)
            if value.is_inference() or not place:
                self._unusual.append((position, value, (writes, place)))
            else:
                self._usual.append((position, value, writes, place))

    def have_changed(self, arguments: Sequence[Any]) -> bool:
        """Whether any weight has changed since construction."""
        for position, value, writes, place in self._usual:
            if arguments[position] is not value or value._version != writes or value.data_ptr() != place:
                return True
        return any(
            arguments[position] is not value or _state(value) != state for position, value, state in self._unusual
        )


def _state(value: Any) -> tuple[int, int]:
    """Return (number of writes, address) of a tensor; 0 if torch does not count writes, or if it has no address."""
    try:
        place = int(value.data_ptr())
    except RuntimeError:  # a wrapper subclass, which has no memory
        place = 0
    return 0 if value.is_inference() else int(value._version), place
