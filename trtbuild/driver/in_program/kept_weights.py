"""Detect whether the weights of a graph of torch.compile have changed since its engines were built.

This check runs before every call. It must take much less than a millisecond for a few hundred weights. So it compares no
values. Torch counts most writes to a tensor, but not these writes:

* Those of fused optimizers, and of optimizers that write to ``parameter.data``. Here, each step of an optimizer counts as
  a change of all its parameters that require a gradient.
* Those of a BatchNorm in training mode to its running statistics. The module itself counts these writes, in its
  buffer ``num_batches_tracked``. This buffer is not found after ``gc.freeze()``.
"""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from collections.abc import Sequence
from typing import Any

#: Held while `_kept_weights` is read or changed.
_lock = threading.Lock()
_kept_weights: weakref.WeakSet[KeptWeights] = weakref.WeakSet()


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
        #: The counters of BatchNorms, and their numbers of writes.
        self._counters = [(counter, counter._version) for counter in _counters_of(weights)]
        self._storages = frozenset(_storage_of(tensor) for _, tensor in weights)
        self._optimizer_has_written = False
        _watch_optimizers()
        with _lock:
            _kept_weights.add(self)

    def note_optimizer_step(self, storages: set[int]) -> None:
        """Note that an optimizer has written to tensors in these storages."""
        if not self._storages.isdisjoint(storages):
            self._optimizer_has_written = True

    def have_changed(self, arguments: Sequence[Any]) -> bool:
        if self._optimizer_has_written:
            return True
        for counter, writes in self._counters:
            if counter._version != writes:
                return True
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


@functools.cache
def _watch_optimizers() -> None:
    """Let each step of an optimizer of torch call `_note_optimizer_step`."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(_note_optimizer_step)


def _note_optimizer_step(optimizer: Any, *_: object) -> None:
    parameters = [entry for group in optimizer.param_groups for entry in group["params"]]
    storages = {_storage_of(entry) for entry in parameters if entry.requires_grad}
    with _lock:
        for kept in _kept_weights:
            kept.note_optimizer_step(storages)


def _storage_of(tensor: Any) -> int:
    """The address of a tensor's storage, or of the tensor itself if it has no storage (a wrapper subclass)."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _counters_of(weights: Sequence[tuple[int, Any]]) -> list[Any]:
    """Return ``num_batches_tracked`` of each module that has one of the weights as a buffer."""
    import torch

    buffers = [tensor for _, tensor in weights if not isinstance(tensor, torch.nn.Parameter)]
    ids = {id(buffer) for buffer in buffers}
    return [
        counter
        for module_buffers in (gc.get_referrers(*buffers) if buffers else ())
        if type(module_buffers) is dict
        and isinstance(counter := module_buffers.get("num_batches_tracked"), torch.Tensor)
        and any(id(value) in ids for value in module_buffers.values())
        and not counter.is_inference()
    ]
