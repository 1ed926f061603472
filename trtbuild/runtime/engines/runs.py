"""Run one TensorRT context: set its shapes and addresses, enqueue it, and return its outputs.

Rules
1. A run sets shapes only if they have changed. It sets the addresses that have changed, and those of copies and empty
   tensors (rule 2). If the shapes have not changed, it allocates only its outputs, which are new tensors, and these copies.
2. TensorRT does not check its inputs, so this module does. The dtype of each value must be the engine's, and its shape must
   be in the range of the profile. A value is copied if it is not contiguous, or its address is not aligned to 256 bytes. An
   empty tensor gets a valid address.
3. The shapes of outputs come from TensorRT, and must equal the shapes in the package. A size of -1 is accepted only if the
   size depends on data, according to the package. TensorRT also returns -1 for input shapes that contradict one another.
4. Engines do not run on the legacy default stream, because TensorRT would wait for the whole device there. A call on this
   stream runs on another stream, which CUDA orders with the default stream (`Memory.working_stream`).
5. A context is freed only after its stream has finished (`Run.__del__`).
6. The copy of an input is not freed before the run is enqueued. Otherwise a new output could get the copy's memory.
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
from trtbuild.runtime.engines.measured import MeasuredOutput
from trtbuild.runtime.engines.workspaces import ALIGNMENT, Workspaces
from trtbuild.runtime.memory.device_memory import Array, Memory
from trtbuild.runtime.memory.tensor_kinds import no_memory_error

#: Stands for an input address that must be set in the next run.
_NO_ADDRESS = -1
#: The largest number of calls whose output makers are cached. When it is reached, the cache is cleared.
_MOST_CACHED = 256
_OTHER_ENGINE_HINT = "the package was made with another engine: build the package again"

#: An output's name, the function that creates a tensor for it, and its dtype. The function is None if the output's size
#: depends on data: TensorRT reports that size while it runs the engine.
_OutputMaker = tuple[str, Callable[[], Array] | None, Any]


class RunnablePart(Protocol):
    """The members of `engine_part.EnginePart` that a run uses."""

    name: str
    engine: Engine
    options: ContextOptions
    partition: Partition
    library: Library
    memory: Memory
    workspaces: Workspaces
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    #: For each profile: the smallest and the largest shape of each input.
    ranges: list[list[tuple[tuple[int, ...], tuple[int, ...]]]]


class Run:
    """A context for the stream and profile of `call`, and its last settings."""

    def __init__(self, part: RunnablePart, call: Call) -> None:
        memory = part.memory
        self.part = part
        #: The stream on which the engine runs (rule 4). `_stream` is the caller's stream.
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
        self._input_addresses = [_NO_ADDRESS] * len(self._input_names)
        #: Output → its address in the context.
        self._output_addresses: dict[str, int] = {}
        self._shapes: list[Any] | None = None
        self._sizes: tuple[int, ...] = ()
        #: The call for which the current shapes were set, or None if its shapes are not fixed (`Call.has_fixed_shapes`).
        self._call: Call | None = None
        #: Call with fixed shapes → the makers of its outputs.
        self._known_makers: dict[Call, list[_OutputMaker]] = {}
        self._output_makers: list[_OutputMaker] = []
        #: Output whose size depends on data → the object that allocates it.
        self._measured_outputs: dict[str, MeasuredOutput] = {}
        #: Output → its sizes in the package. A size is None if it depends on data.
        self._expected_sizes: dict[str, list[int | None]] = {}
        self._memory_bytes = part.engine.memory_bytes(call.profile)
        self._workspace_address = 0
        #: Its address is the address of empty tensors.
        self._empty_buffer: Array | None = None
        #: The copies of inputs in the current call (rule 6).
        self._input_copies: list[Array] = []
        self.workspace = part.workspaces.workspace_for(call.stream)

    def __call__(self, values: Sequence[Array], call: Call) -> Sequence[Array]:
        try:
            self.prepare(values, call)
            outputs = self.outputs()
            self.enqueue(self.stream)
        finally:
            if self._input_copies:
                self._input_copies.clear()
        return outputs if not self._measured_outputs else self._add_measured_outputs(outputs)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            with contextlib.suppress(Exception):  # `__init__` may have failed, or the device may be lost
                for stream in {self.stream, self._stream}:  # a graph is launched on the caller's stream, `_stream`
                    self.part.memory.synchronize(stream)

    def move_to_this_thread(self) -> None:
        """Use the current thread's workspace from now on."""
        self.workspace = self.part.workspaces.workspace_for(self._stream)

    @property
    def has_measured_outputs(self) -> bool:
        """Whether the engine has outputs whose size depends on data."""
        return bool(self._measured_outputs)

    def prepare(self, values: Sequence[Array], call: Call) -> None:
        """Set the shapes, the input addresses and the activation memory of the context."""
        if call is not self._call:
            if self._shapes is None or call.sizes != self._sizes or [value.shape for value in values] != self._shapes:
                self._set_shapes(values, call)
            self._call = call if call.has_fixed_shapes else None
        addresses, dtypes = self._input_addresses, self._input_dtypes
        for index, value in enumerate(values):
            if value.dtype != dtypes[index]:
                raise self.dtype_error(index, value)
            address = value.data_ptr()
            if address != addresses[index] or address % ALIGNMENT or not value.is_contiguous():
                self._set_input(index, value)
        workspace = self.workspace
        if workspace.address != self._workspace_address or workspace.size_bytes < self._memory_bytes:
            workspace.reserve(self._memory_bytes)
            self.context.use_memory(workspace.address, workspace.size_bytes)
            self._workspace_address = workspace.address

    def outputs(self) -> list[Array]:
        """Create the outputs and set their addresses. An output whose size depends on data is None."""
        outputs: list[Any] = []
        output_addresses = self._output_addresses
        for name, make, _ in self._output_makers:
            if make is None:
                self._measured_outputs[name].begin_run()
                outputs.append(None)
                continue
            array = make()
            address = array.data_ptr()
            if address != output_addresses.get(name) or not address:  # allocators often return the same memory again
                output_addresses.pop(name, None)
                if not self._set_address(name, address or self._valid_address()):
                    raise self._refusal(f"the address of output {name}")
                output_addresses[name] = address
            outputs.append(array)
        return outputs

    def enqueue(self, stream: int) -> None:
        """Enqueue the work. If that fails, raises the error of `MeasuredOutput.allocate`, if there was one, and otherwise
        EngineError with TensorRT's messages."""
        if not self._enqueue(stream):
            self._shapes = self._call = None  # the context may be in any state, so the next call sets everything again
            self._input_addresses = [_NO_ADDRESS] * len(self._input_addresses)
            self._output_addresses.clear()
            for measured in self._measured_outputs.values():
                measured.raise_error()
            raise self._refusal("to run")

    def _set_input(self, index: int, value: Array) -> None:
        if not value.is_contiguous() or value.data_ptr() % ALIGNMENT:
            value = self.part.memory.contiguous_copy(value, self._stream)
            self._input_copies.append(value)
            address = value.data_ptr()
            self._input_addresses[index] = _NO_ADDRESS
        else:
            address = value.data_ptr()
            if not address and 0 not in value.shape:
                raise no_memory_error(value, self._input_text(index))
            self._input_addresses[index] = address or _NO_ADDRESS
        if not self._set_address(self._input_names[index], address or self._valid_address()):
            self._input_addresses[index] = _NO_ADDRESS
            raise self._refusal(f"the address of input {self._input_names[index]}")

    def _valid_address(self) -> int:
        """Return an address for empty tensors, because TensorRT refuses a null pointer."""
        if self._empty_buffer is None:
            memory = self.part.memory
            self._empty_buffer = memory.empty((ALIGNMENT,), memory.dtype("uint8"), self._stream)
        return self._empty_buffer.data_ptr()

    # -- when shapes change

    def _set_shapes(self, values: Sequence[Array], call: Call) -> None:
        """Set the input shapes, and choose the output makers. Raises CallRefused and EngineError."""
        self._shapes = self._call = None
        if len(values) != len(self._input_names):
            raise CallRefused(f"{self.part.name} takes {len(self._input_names)} tensors, not {len(values)}")
        self.part.library.take_errors()  # removes earlier errors, so that `_refusal` shows only those of this call
        known = self._known_makers.get(call)
        for index, (name, value) in enumerate(zip(self._input_names, values, strict=True)):
            shape = tuple(value.shape)
            if known is None:
                self._check_range(index, shape, call.profile)
            if not self.context.set_shape(name, shape):
                raise self._refusal(f"shape {list(shape)} of {self._input_text(index)}")
        self._output_makers = self._new_output_makers(call) if known is None else known
        if call.has_fixed_shapes and not self._measured_outputs:
            if len(self._known_makers) >= _MOST_CACHED:
                self._known_makers.clear()
            self._known_makers[call] = self._output_makers
        self._sizes = call.sizes
        self._shapes = [value.shape for value in values]

    def _check_range(self, index: int, shape: tuple[int, ...], profile: int) -> None:
        low, high = self.part.ranges[profile][index]
        if not _is_within(shape, low, high):
            raise CallRefused(
                f"{self._input_text(index)} has shape {list(shape)}, but profile {profile} of its engine takes "
                f"{list(low)} to {list(high)}"
            )

    def _new_output_makers(self, call: Call) -> list[_OutputMaker]:
        """Return the output makers for the current shapes. Raises EngineError (rule 3)."""
        makers: list[_OutputMaker] = []
        for name, dtype, type_ in zip(
            self._output_names, self._output_dtypes, self.part.partition.outputs, strict=True
        ):
            expected = [None if depends_on_data(size) else evaluate(size, call.sizes) for size in type_.shape]
            shape = self._output_shape(name, expected)
            self._expected_sizes[name] = expected
            make = None if -1 in shape else self.part.memory.array_maker(shape, dtype, self._stream)
            makers.append((name, make, dtype))
        return makers

    def _output_shape(self, name: str, expected: list[int | None]) -> tuple[int, ...]:
        """Return the shape of an output, with -1 for a size that depends on data. Raises EngineError if the shape is not
        `expected`. If a size of the output depended on data before, returns (-1,)."""
        if name in self._measured_outputs:  # the context would return the shape of the last run
            return (-1,)
        try:
            shape = self.context.shape(name)
        except EngineError as error:
            raise EngineError(f"the engine of {self.part.name}: {error.text}", hint=_OTHER_ENGINE_HINT) from error
        self._check_shape(name, shape, expected)
        if -1 in shape:
            self._measured_outputs[name] = MeasuredOutput(self.part.memory, self._stream)
            self.context.set_output_memory(name, self._measured_outputs[name])
        return shape

    def _add_measured_outputs(self, outputs: list[Array]) -> list[Array]:
        for index, (name, make, dtype) in enumerate(self._output_makers):
            if make is None:
                outputs[index] = array = self._measured_outputs[name].result(dtype)
                self._check_shape(name, tuple(array.shape), self._expected_sizes[name])
        return outputs

    def _check_shape(self, name: str, shape: tuple[int, ...], expected: list[int | None]) -> None:
        """Raise EngineError if `shape` is not the package's shape `expected`. None in `expected` allows any size."""
        if len(shape) == len(expected) and all(
            allowed is None or size == allowed for size, allowed in zip(shape, expected, strict=True)
        ):
            return
        errors = self.part.library.take_errors()
        raise EngineError(
            f"the engine of {self.part.name} gives {name} the shape {list(shape)}, but the package has {expected}"
            + (f": {errors}" if errors else ""),
            hint=_OTHER_ENGINE_HINT,
        )

    def dtype_error(self, index: int, value: Array) -> CallRefused:
        """Return the error for a value of another dtype than the engine's."""
        expected = self.part.inputs[index].dtype
        return CallRefused(
            f"{self._input_text(index)} is {str(value.dtype).removeprefix('torch.')}, but its engine takes {expected}",
            hint=f"cast it to {expected}",
        )

    def _input_text(self, index: int) -> str:
        return f"input {index} of {self.part.name} ({self.part.partition.inputs[index][0]})"

    def _refusal(self, subject: str) -> EngineError:
        errors = self.part.library.take_errors() or "no reason was given"
        return EngineError(f"{self.part.library.name} refuses {subject} ({self.part.name}): {errors}")


def _is_within(shape: tuple[int, ...], low: tuple[int, ...], high: tuple[int, ...]) -> bool:
    return len(shape) == len(low) and all(
        smallest <= size <= largest for smallest, size, largest in zip(low, shape, high, strict=True)
    )
