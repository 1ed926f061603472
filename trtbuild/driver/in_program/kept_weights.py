"""Whether the weights of a graph of torch.compile are those that its engines were built with.

It is asked before every call, for every weight of the model: a model of some hundred weights may not pay for it with more
than a few microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class KeptWeights:
    """`weights` as they are now: each with its position among the graph's arguments.

    A weight has changed where another tensor stands there, where it was written to (torch counts that), or where it lies
    elsewhere (``parameter.data = …`` is no write). Their memory is kept, so that nothing else comes to lie there.
    """

    def __init__(self, weights: Sequence[tuple[int, Any]]) -> None:
        self._memory = [value.detach() for _, value in weights]
        #: Position, tensor, how often it was written to, and where it lies.
        self._usual: list[tuple[int, Any, int, int]] = []
        #: Tensors of inference mode, whose writes nobody counts, and tensors of other tensors, which lie nowhere.
        self._unusual: list[tuple[int, Any, tuple[int, int]]] = []
        for position, value in weights:
            writes, place = _state(value)
            if value.is_inference() or not place:
                self._unusual.append((position, value, (writes, place)))
            else:
                self._usual.append((position, value, writes, place))

    def have_changed(self, arguments: Sequence[Any]) -> bool:
        """Whether any of them is not what it was."""
        for position, value, writes, place in self._usual:
            if arguments[position] is not value or value._version != writes or value.data_ptr() != place:
                return True
        return any(
            arguments[position] is not value or _state(value) != state for position, value, state in self._unusual
        )


def _state(value: Any) -> tuple[int, int]:
    """How often a tensor was written to (0 where nobody counts), and where it lies (0 for nowhere)."""
    try:
        place = int(value.data_ptr())
    except RuntimeError:  # a tensor of other tensors, which has no memory of its own
        place = 0
    return 0 if value.is_inference() else int(value._version), place
