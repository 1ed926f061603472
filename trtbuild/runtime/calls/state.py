"""The state of a module between calls, such as the keys and values of a KV cache.

A session is a series of calls with its own state. A part is a partition that is ready to run.

Rules
1. A call reads the arrays of its session, and replaces them by its new states. So an output of one call is an input of the
   next call, without a copy. Apart from rules 4 and 5, a new state is copied only if the same array is also an output, an
   input or another new state.
2. No part writes to its inputs, so all sessions begin with the same arrays of first values. A caller may write to the
   results, so an old state that the model returns is copied for the caller.
3. Calls of one session run one after the other. A call that begins while another thread is in a call of the same session
   raises an error, because no result would be right. A call that fails does not change the state.
4. PyTorch's results may be views of its inputs, or of one another. So if PyTorch computes a part, an output that shares
   memory with a state is copied for the caller. A new state that shares memory with an input of the caller is copied, too.
5. A call on another stream than the previous call waits for that call's work, and copies the state. The copy is needed
   because memory is freed in the order of the stream for which it was allocated.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtbuild.core.model.state import StateTensor
from trtbuild.core.packages.package_index import PackageIndex
from trtbuild.core.partition.partitions import Partitions
from trtbuild.core.values.nearest import suggestion
from trtbuild.errors import CallRefused
from trtbuild.runtime.calls.arguments import ArrayOperations
from trtbuild.runtime.calls.call import Array


@dataclass(frozen=True)
class StateLayout:
    """The facts that all sessions of a package share.

    `first_values` are the first values of `entries`. `output_count` is the number of outputs that the caller gets: the
    first ones of a call. `copied` has the numbers of the entries whose new value is copied (rule 1). `copied_outputs` has
    the numbers of the model's outputs that are copied (rule 2). `has_views` is whether PyTorch computes a part (rule 4)."""

    model: str
    entries: tuple[StateTensor, ...]
    first_values: tuple[Array, ...]
    output_count: int
    copied: frozenset[int]
    copied_outputs: tuple[int, ...]
    has_views: bool

    @classmethod
    def of(
        cls, index: PackageIndex, partitions: Partitions, first_values: Sequence[Array], *, has_views: bool
    ) -> StateLayout:
        """Return the layout of a package's state, for the partitions of one target."""
        sources = [partitions.outputs[entry.output] for entry in index.state]
        returned = partitions.outputs[: len(index.outputs)]
        copied = {
            number
            for number, source in enumerate(sources)
            if source in returned or source in sources[:number] or source.startswith("input:")
        }
        old_states = {f"input:{len(index.inputs) + number}" for number in range(len(index.state))}
        copied_outputs = tuple(number for number, source in enumerate(returned) if source in old_states)
        return cls(
            index.model,
            index.state,
            tuple(first_values),
            len(returned),
            frozenset(copied),
            copied_outputs,
            has_views,
        )


class State:
    """The state of one session. If `advances` is False, calls do not change the state.

    ``wait(reader, writer)`` lets the stream `reader` wait for the stream `writer`. It is None on the CPU.
    """

    def __init__(
        self,
        layout: StateLayout,
        arrays: ArrayOperations,
        wait: Callable[[int, int], None] | None,
        *,
        advances: bool = True,
    ) -> None:
        self.layout = layout
        self._operations = arrays
        self._wait = wait
        self._advances = advances
        self._lock = threading.Lock()
        self._arrays = layout.first_values
        self._stream: int | None = None

    @contextlib.contextmanager
    def call(self, stream: int) -> Iterator[_StateCall]:
        """Yield the arrays for one call on `stream`. Raises CallRefused if another thread is in a call of this session."""
        with self._exclusive():
            yield _StateCall(self, self._current(stream), stream)

    def reset(self) -> None:
        """Begin again with the first values. Raises CallRefused, as `call` does."""
        with self._exclusive():
            self._arrays = self.layout.first_values

    def get(self, stream: int) -> dict[str, Array]:
        """Return buffer name → a copy of its present value. Raises CallRefused, as `call` does."""
        with self._exclusive():
            arrays = self._current(stream)
            copies = [self._operations.contiguous_copy(array, stream) for array in arrays]
        return {entry.name: copy for entry, copy in zip(self.layout.entries, copies, strict=True)}

    def set(self, values: Mapping[str, Any], stream: int) -> None:
        """Copy `values` (buffer name → value) into the state. Other buffers keep their values. Raises CallRefused for an
        unknown name, and for another dtype, shape or device. Then nothing is replaced."""
        names = [entry.name for entry in self.layout.entries]
        unknown = [name for name in values if name not in names]
        if unknown:
            raise CallRefused(
                f"the model {self.layout.model!r} has no state {unknown[0]!r}",
                hint=suggestion(unknown[0], names, "buffers"),
            )
        with self._exclusive():
            arrays = list(self._current(stream))
            for number, name in enumerate(names):
                if name in values:
                    arrays[number] = self._copy_of(values[name], name, self.layout.first_values[number], stream)
            self._arrays = tuple(arrays)

    def new_session(self, *, advances: bool = True) -> State:
        """Return the state of a new session of the same package."""
        return State(self.layout, self._operations, self._wait, advances=advances)

    def keep(self, inputs: Sequence[Array], outputs: Sequence[Array], stream: int) -> Sequence[Array]:
        """Keep the new states of a call, and return the outputs of the model. `inputs` are the caller's inputs."""
        layout, contiguous_copy = self.layout, self._operations.contiguous_copy
        returned = list(outputs[: layout.output_count])
        for number in layout.copied_outputs:
            returned[number] = contiguous_copy(returned[number], stream)
        states = self._arrays
        if self._advances:
            states = tuple(
                contiguous_copy(outputs[entry.output], stream) if number in layout.copied else outputs[entry.output]
                for number, entry in enumerate(layout.entries)
            )
        if layout.has_views:
            if self._advances:
                states = tuple(self._copy_shared(states, inputs, stream))
            returned = self._copy_shared(returned, [*self._arrays, *states], stream)
        self._arrays = states
        return returned

    def _copy_shared(self, arrays: Sequence[Array], others: Sequence[Array], stream: int) -> list[Array]:
        """Return `arrays`, and copy those that share memory with one of `others`."""
        memory_of_others = {_memory_of(other) for other in others}
        return [
            self._operations.contiguous_copy(array, stream) if _memory_of(array) in memory_of_others else array
            for array in arrays
        ]

    def _copy_of(self, value: Any, name: str, first_value: Any, stream: int) -> Array:
        """Copy a value for the buffer `name`. Raises CallRefused if the dtype, shape or device of the value is wrong."""
        operations, text = self._operations, f"the state {name!r}"
        array: Any = value if type(value) in operations.own_types else operations.adopt(value, text, stream)
        array = operations.materialize(array, text)  # copies a tensor whose memory does not contain its values
        actual, expected = _type_text(array), _type_text(first_value)
        if actual != expected:
            raise CallRefused(
                f"{text} is {actual}, but must be {expected}", hint="take it from get_state() of the same package"
            )
        if array.device != operations.device:
            raise CallRefused(f"{text} is on {array.device}, but the model runs on {operations.device}")
        return operations.contiguous_copy(array, stream)

    def _current(self, stream: int) -> tuple[Array, ...]:
        """Return the arrays of the state for work on `stream` (rule 5)."""
        last = self._stream
        if last is not None and stream != last and self._wait is not None:
            self._wait(stream, last)
            self._arrays = tuple(self._operations.contiguous_copy(array, stream) for array in self._arrays)
            self._wait(last, stream)  # later work on `last` may get the memory of the old arrays
        self._stream = stream
        return self._arrays

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise CallRefused(
                f"another thread uses this session of the model {self.layout.model!r}",
                hint="call session() once for each thread: every session has its own state",
            )
        try:
            yield
        finally:
            self._lock.release()


@dataclass(frozen=True)
class _StateCall:
    """One call of a session. `arrays` are the state before the call."""

    state: State
    arrays: tuple[Array, ...]
    stream: int

    def keep(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array]:
        """Call `State.keep` on the stream of this call."""
        return self.state.keep(inputs, outputs, self.stream)


def _memory_of(tensor: Any) -> int:
    """Return the address of a torch tensor's whole memory, which other tensors may share."""
    return int(tensor.untyped_storage().data_ptr())


def _type_text(array: Any) -> str:
    """Return the dtype and the shape of an array as text."""
    return f"{str(array.dtype).removeprefix('torch.')} {[*array.shape]}"
