"""Running one context: what it is told, when, and what it gives.

Rules
1. A run sets shapes and asks for output shapes only when they changed, and addresses only when they changed. Outputs are
   new tensors; nothing else is allocated.
2. TensorRT is never given what it does not check: the dtype of every value is compared with the engine's, and its shape
   with the ranges of the profile (whoever calls: a module, an operator, a warm-up); an address that is not aligned to 256
   bytes is copied to one that is, an empty tensor has some address.
3. The shapes of outputs are TensorRT's (from the context, or from its output allocator), and must be those that the
   package says. A size of -1 is taken only where the package says that it depends on data: from input shapes that do not go
   together TensorRT infers none either.
4. No engine runs on the legacy default stream, where TensorRT waits for the whole device. A call on it is enqueued on a
   stream that CUDA orders with it (`Memory.working_stream`).
5. A context goes only after its stream is done (`Run.__del__`).
6. What is packed for a run lives until it is enqueued: outputs are made meanwhile, and may get memory that was let go.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from trtbuild.core.engines.execution import Binding, Context, ContextOptions, Engine, Library
from trtbuild.core.partition.partitions import Partition
from trtbuild.core.values.expressions import depends_on_data, evaluate
from trtbuild.errors import CallRefused, EngineError
from trtbuild.runtime.calls.call import Call
from trtbuild.runtime.engines.measured import Measured
from trtbuild.runtime.engines.workspaces import ALIGNMENT, Workspaces
from trtbuild.runtime.memory.device_memory import Array, Memory
from trtbuild.runtime.memory.tensor_kinds import no_memory

_UNSET = -1
#: Calls whose outputs' makers are remembered. Then all are forgotten: memory stays bounded.
_REMEMBERED = 256
_ANOTHER = "the engine is not the one that the package was made with: build the package again"

#: An output's name, what makes a new tensor for it (None where only running tells the size), and dtype.
_Made = tuple[str, Callable[[], Array] | None, Any]


class RunnablePart(Protocol):
    """What a run needs of its engine (`engine_part.EnginePart`)."""

    name: str
    engine: Engine
    options: ContextOptions
    partition: Partition
    library: Library
    memory: Memory
    workspaces: Workspaces
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    #: The smallest and largest shape of each input, by profile.
    ranges: list[list[tuple[tuple[int, ...], tuple[int, ...]]]]


class Run:
    """One context, and what it was told last; for the stream and profile of `call`."""

    def __init__(self, part: RunnablePart, call: Call) -> None:
        memory = part.memory
        self.part = part
        self.stream = memory.working_stream(call.stream)
        self.context: Context = part.engine.create_context(call.profile, self.stream, part.options)
        context = self.context
        self._stream = call.stream
        self._enqueue = context.enqueue
        self._set_address = context.set_address
        self._input_names = tuple(binding.name for binding in part.inputs)
        self._input_dtypes = [memory.dtype(binding.dtype) for binding in part.inputs]
        self._output_names = tuple(binding.name for binding in part.outputs)
        self._output_dtypes = [memory.dtype(binding.dtype) for binding in part.outputs]
        self._addresses = [_UNSET] * len(self._input_names)
        #: Output → the address that the context has.
        self._written: dict[str, int] = {}
        self._shapes: list[Any] | None = None
        self._sizes: tuple[int, ...] = ()
        #: The call that the shapes are of, where it decides them.
        self._call: Call | None = None
        #: Such calls → what their outputs are made with.
        self._known: dict[Call, list[_Made]] = {}
        self._made: list[_Made] = []
        self._measured: dict[str, Measured] = {}
        #: The outputs' sizes as the package says them; None where they depend on data.
        self._said_sizes: dict[str, list[int | None]] = {}
        self._memory_bytes = part.engine.memory_bytes(call.profile)
        self._workspace_address = 0
        self._nowhere: Array | None = None
        self._packed: list[Array] = []
        self.workspace = part.workspaces.here(call.stream)

    def __call__(self, values: Sequence[Array], call: Call) -> Sequence[Array]:
        self.prepare(values, call)
        outputs = self.outputs()
        self.enqueue(self.stream)
        if self._packed:
            self._packed.clear()
        return outputs if not self._measured else self._settled(outputs)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            with contextlib.suppress(Exception):  # a Run that was never finished, or a device that is lost
                for stream in {self.stream, self._stream}:  # a graph is launched on the caller's
                    self.part.memory.synchronize(stream)

    def move_in(self) -> None:
        """Another thread has it from now on: it computes in that thread's workspace."""
        self.workspace = self.part.workspaces.here(self._stream)

    @property
    def measures(self) -> bool:
        """Whether it has outputs whose size only running tells."""
        return bool(self._measured)

    def prepare(self, values: Sequence[Array], call: Call) -> None:
        """Tell the context shapes, addresses of inputs, and where it may compute."""
        if call is not self._call:
            if self._shapes is None or call.sizes != self._sizes or [value.shape for value in values] != self._shapes:
                self._reshape(values, call)
            self._call = call if call.decides else None
        addresses, dtypes = self._addresses, self._input_dtypes
        for index, value in enumerate(values):
            if value.dtype != dtypes[index]:
                raise self.refused_dtype(index, value)
            address = value.data_ptr()
            if address != addresses[index] or address % ALIGNMENT or not value.is_contiguous():
                self._set_input(index, value)
        workspace = self.workspace
        if workspace.address != self._workspace_address or workspace.size_bytes < self._memory_bytes:
            workspace.reserve(self._memory_bytes)
            self.context.use_memory(workspace.address, workspace.size_bytes)
            self._workspace_address = workspace.address

    def outputs(self) -> list[Array]:
        """New tensors for the outputs, whose addresses the context has. Those of unknown size come later."""
        outputs: list[Any] = []
        written = self._written
        for name, make, _ in self._made:
            if make is None:
                self._measured[name].begin()
                outputs.append(None)
                continue
            array = make()
            address = array.data_ptr()
            if address != written.get(name) or not address:  # allocators often give the same memory again
                written.pop(name, None)
                if not self._set_address(name, address or self._some_address()):
                    raise self._refused(f"the address of output {name}")
                written[name] = address
            outputs.append(array)
        return outputs

    def enqueue(self, stream: int) -> None:
        """Enqueue the work. Raises EngineError with TensorRT's words."""
        if not self._enqueue(stream):
            self._shapes = self._call = None  # whatever state it is in: everything is told anew
            self._addresses = [_UNSET] * len(self._addresses)
            self._written.clear()
            for measured in self._measured.values():
                measured.raise_error()
            raise self._refused("to run")

    def _set_input(self, index: int, value: Array) -> None:
        if not value.is_contiguous() or value.data_ptr() % ALIGNMENT:
            value = self.part.memory.packed(value, self._stream)
            self._packed.append(value)
            address = value.data_ptr()
            self._addresses[index] = _UNSET
        else:
            address = value.data_ptr()
            if not address and 0 not in value.shape:
                raise no_memory(value, self._said(index))
            self._addresses[index] = address or _UNSET  # what has none is always looked at
        if not self._set_address(self._input_names[index], address or self._some_address()):
            self._addresses[index] = _UNSET
            raise self._refused(f"the address of input {self._input_names[index]}")

    def _some_address(self) -> int:
        """An address for what is empty: TensorRT takes no null."""
        if self._nowhere is None:
            memory = self.part.memory
            self._nowhere = memory.empty((ALIGNMENT,), memory.dtype("uint8"), self._stream)
        return self._nowhere.data_ptr()

    # -- when shapes change

    def _reshape(self, values: Sequence[Array], call: Call) -> None:
        self._shapes = self._call = None
        if len(values) != len(self._input_names):
            raise CallRefused(f"{self.part.name} takes {len(self._input_names)} tensors, not {len(values)}")
        self.part.library.words()  # what was said before is not the reason of what comes
        known = self._known.get(call)
        for index, (name, value) in enumerate(zip(self._input_names, values, strict=True)):
            shape = tuple(value.shape)
            if known is None:
                self._check_range(index, shape, call.profile)
            if not self.context.set_shape(name, shape):
                raise self._refused(f"shape {list(shape)} of {self._said(index)}")
        self._made = self._makers(call) if known is None else known
        if call.decides and not self._measured:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[call] = self._made
        self._sizes = call.sizes
        self._shapes = [value.shape for value in values]

    def _check_range(self, index: int, shape: tuple[int, ...], profile: int) -> None:
        low, high = self.part.ranges[profile][index]
        if not _within(shape, low, high):
            raise CallRefused(
                f"{self._said(index)} has shape {list(shape)}, and profile {profile} of its engine takes "
                f"{list(low)} to {list(high)}"
            )

    def _makers(self, call: Call) -> list[_Made]:
        made: list[_Made] = []
        for name, dtype, type_ in zip(
            self._output_names, self._output_dtypes, self.part.partition.outputs, strict=True
        ):
            said = [None if depends_on_data(size) else evaluate(size, call.sizes) for size in type_.shape]
            shape = self._shape(name, said)
            self._said_sizes[name] = said
            make = None if -1 in shape else self.part.memory.maker(shape, dtype, self._stream)
            made.append((name, make, dtype))
        return made

    def _shape(self, name: str, said: list[int | None]) -> tuple[int, ...]:
        """The shape of an output under the input shapes that were set, which is what the package has `said`; -1 where only
        running tells it."""
        if name in self._measured:  # for good: after a run the context says the shape that it had then
            return (-1,)
        try:
            shape = self.context.shape(name)
        except EngineError as error:
            raise EngineError(f"the engine of {self.part.name}: {error.text}", hint=_ANOTHER) from error
        self._compare(name, shape, said)
        if -1 in shape:
            self._measured[name] = Measured(self.part.memory, self._stream)
            self.context.send_output(name, self._measured[name])
        return shape

    def _settled(self, outputs: list[Array]) -> list[Array]:
        for index, (name, make, dtype) in enumerate(self._made):
            if make is None:
                outputs[index] = array = self._measured[name].result(dtype)
                self._compare(name, tuple(array.shape), self._said_sizes[name])
        return outputs

    def _compare(self, name: str, shape: tuple[int, ...], said: list[int | None]) -> None:
        """Raise EngineError unless `shape` is the package's, whose None is any size."""
        if len(shape) == len(said) and all(
            wanted is None or size == wanted for size, wanted in zip(shape, said, strict=True)
        ):
            return
        words = self.part.library.words()
        raise EngineError(
            f"the engine of {self.part.name} gives {name} the shape {list(shape)}, and the package says {said}"
            + (f": {words}" if words else ""),
            hint=_ANOTHER,
        )

    def refused_dtype(self, index: int, value: Array) -> CallRefused:
        """The error for a value of another element type."""
        wanted = self.part.inputs[index].dtype
        return CallRefused(
            f"{self._said(index)} is {str(value.dtype).removeprefix('torch.')}, and its engine takes {wanted}",
            hint=f"cast it to {wanted}",
        )

    def _said(self, index: int) -> str:
        return f"input {index} of {self.part.name} ({self.part.partition.inputs[index][0]})"

    def _refused(self, what: str) -> EngineError:
        words = self.part.library.words() or "no reason was given"
        return EngineError(f"{self.part.library.name} refuses {what} ({self.part.name}): {words}")


def _within(shape: tuple[int, ...], low: tuple[int, ...], high: tuple[int, ...]) -> bool:
    return len(shape) == len(low) and all(
        smallest <= size <= largest for smallest, size, largest in zip(low, shape, high, strict=True)
    )
