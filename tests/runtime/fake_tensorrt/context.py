"""An ``IExecutionContext`` of the fake."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.runtime.fake_gpu import Misuse
from tests.runtime.fake_tensorrt import messages
from tests.runtime.fake_tensorrt.kinds import Dims, ProcessEnded
from tests.runtime.fake_tensorrt.samples import SAMPLES, numpy_type

if TYPE_CHECKING:
    from tests.runtime.fake_tensorrt import _Engine

#: TensorRT 8.6 requires this alignment of activation memory, and rounds up the sizes of outputs to a multiple of it.
MEMORY_ALIGNMENT = 512


def _rounded(size_bytes: int) -> int:
    """Round up to a positive multiple of `MEMORY_ALIGNMENT`."""
    return max(-(-size_bytes // MEMORY_ALIGNMENT), 1) * MEMORY_ALIGNMENT


class _Context:
    """A fake IExecutionContext. Names that the real class does not have begin with an underscore."""

    def __init__(self, engine: _Engine) -> None:
        self._engine, self._trt = engine, engine.trt
        self._shapes: dict[str, tuple[int, ...]] = {}
        #: The last shapes of outputs of unknown size. They stay when input shapes change, which is the worse case for the
        #: runtime. No probe shows whether the real library forgets these shapes.
        self._last_output_shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}
        self._memory = 0
        self._profiler: Any = None
        self._last: tuple[int, int] | None = None  # the stream and position of the last work
        self._busy = threading.Lock()
        self._trt.contexts_made += 1
        self._trt.contexts_alive += 1
        self.active_optimization_profile = 0
        if engine.keeps_profiles_apart:
            self.active_optimization_profile = -1 if 0 in engine.in_use else 0
            if self.active_optimization_profile == 0:
                engine.in_use.append(0)

    def __del__(self) -> None:
        self._trt.contexts_alive -= 1
        if self._last is not None and self._trt.gpu.pending(*self._last):
            _FAULTS.append("a context was destroyed before its work had run")
        if self.active_optimization_profile in self._engine.in_use:
            self._engine.in_use.remove(self.active_optimization_profile)

    def _set_memory(self, address: int) -> None:
        error = messages.MEMORY_NOT_ALIGNED if address % MEMORY_ALIGNMENT else []
        if not address and self._engine.device_memory_size:
            error = messages.NULL_MEMORY
        self._trt.log_messages(error)
        if not error:  # otherwise the earlier value stays
            self._memory = address

    def _get_memory(self) -> int:
        raise AttributeError("property of 'IExecutionContext' object has no getter")

    device_memory = property(_get_memory, _set_memory)

    profiler = property(lambda self: self._profiler, lambda self, value: setattr(self, "_profiler", value))

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        engine = self._engine
        if not 0 <= profile < engine.num_optimization_profiles:
            raise ProcessEnded(-11)
        if engine.keeps_profiles_apart and profile != self.active_optimization_profile:
            if profile in engine.in_use:
                raise ProcessEnded(-11)
            if self.active_optimization_profile in engine.in_use:
                engine.in_use.remove(self.active_optimization_profile)
            engine.in_use.append(profile)
        self.active_optimization_profile = profile  # shapes stay, even if the new profile does not allow them
        return True

    def set_input_shape(self, name: str, shape: Any) -> bool:
        """As in the real class, sizes beyond the profile are accepted. Only later calls fail, for example a run."""
        self._trt.count_call("set_input_shape")
        shape, engine = tuple(shape), self._engine
        if not engine.has(name, "setInputShape"):
            return False
        if not name.startswith("i"):
            self._trt.log_messages(messages.NOT_AN_INPUT)
            return False
        declared = engine.tensors[name][1]
        if len(shape) != len(declared):
            self._trt.log_messages(messages.WRONG_RANK)
            return False
        if any(fixed not in (-1, size) for size, fixed in zip(shape, declared, strict=True)):
            self._trt.log_messages(messages.WRONG_SIZE)
            return False
        self._shapes[name] = shape
        return True

    def _missing(self) -> list[str]:
        """Return the inputs whose shapes are not known."""
        inputs = {f"i{k}": declared for k, (_, declared) in enumerate(self._engine.sample.inputs)}
        return [name for name, declared in inputs.items() if -1 in self._shapes.get(name, declared)]

    def _input_shapes(self) -> list[tuple[int, ...]]:
        return [self._shapes.get(f"i{k}", declared) for k, (_, declared) in enumerate(self._engine.sample.inputs)]

    def _out_of_range(self) -> messages.Messages:
        """Return the message for the first shape that is beyond the profile."""
        profile, engine = self.active_optimization_profile, self._engine
        for number, shape in enumerate(self._input_shapes()):
            low, _, high = engine.sample.profiles[profile][number]
            for axis, size in enumerate(shape):
                if number not in engine.sample.on_host and not low[axis] <= size <= high[axis]:
                    binding = profile * engine.num_io_tensors + list(engine.tensors).index(f"i{number}")
                    return messages.out_of_range(binding, axis, shape, low, high)
        return []

    def _output_shapes(self) -> list[tuple[int, ...]] | None:
        """Return the shapes of the outputs, or None if the shapes of the inputs are not compatible."""
        try:
            return self._engine.sample.shapes(self._input_shapes())
        except ValueError:
            return None

    @property
    def all_binding_shapes_specified(self) -> bool:
        """Whether all shapes are known and within the profile. False if an input is in host memory, as in TensorRT."""
        if self._missing() or self._out_of_range() or self._engine.sample.on_host:
            return False
        return not any(-1 in shape for shape in self._output_shapes() or [(-1,)])

    all_shape_inputs_specified = property(lambda self: not self._engine.sample.on_host)

    def infer_shapes(self) -> list[str]:
        self._trt.count_call("infer_shapes")
        missing = [*self._missing(), *[f"i{k}" for k in self._engine.sample.on_host]]
        if not missing and (self._out_of_range() or self._output_shapes() is None):
            raise ProcessEnded(-11)
        return missing

    def get_tensor_shape(self, name: str) -> Dims:
        engine = self._engine
        if not engine.has(name, "getTensorShape"):
            return Dims(None)
        declared = engine.tensors[name][1]
        if name.startswith("i"):
            return Dims(self._shapes.get(name, declared))
        if self._missing() or engine.sample.on_host:
            return Dims(declared)
        shapes = self._output_shapes()
        if shapes is None:
            self._trt.log_messages(messages.incompatible(*self._input_shapes()))
            return Dims(None)
        return Dims(self._last_output_shapes.get(name, shapes[int(name[1:])]))

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._trt.count_call("set_tensor_address")
        if not self._engine.has(name, "setTensorAddress"):
            return False
        self._addresses[name] = address
        return True

    def get_tensor_address(self, name: str) -> int:
        return self._addresses.get(name, 0)

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        self._allocators[name] = allocator
        return True

    def get_max_output_size(self, name: str) -> int:
        """Return the largest size in bytes of an output of unknown size, for elements of 4 bytes."""
        (_, _, high), *_ = self._engine.sample.profiles[self.active_optimization_profile]
        return _rounded(int(np.prod(high)) * 4)

    def execute_async_v3(self, stream: int) -> bool:
        if not self._busy.acquire(blocking=False):
            raise Misuse("two threads use one context at once")
        try:
            return self._execute(stream)
        finally:
            self._busy.release()

    def _execute(self, stream: int) -> bool:
        trt, gpu, sample = self._trt, self._trt.gpu, self._engine.sample
        trt.count_call("execute_async_v3")
        # misuse that TensorRT does not report
        if self.active_optimization_profile < 0:
            raise Misuse("a context without an optimization profile")
        if gpu.current() != self._engine.device:
            raise Misuse("the engine's device is not the current one")
        if stream in (0, 1):
            raise Misuse("an engine on the legacy default stream: TensorRT would wait for the device")
        # errors that TensorRT reports
        for name in self._engine.tensors:
            if not self._addresses.get(name) and name not in self._allocators:
                trt.log_messages(messages.INPUT_MISSING if name.startswith("i") else messages.OUTPUT_MISSING)
                return False
        message_count = len(sample.outputs) + 1
        if self._missing():
            trt.log_messages(messages.SHAPE_MISSING * message_count)
            return False
        if error := self._out_of_range():
            trt.log_messages(error)
            return False
        if self._output_shapes() is None:
            trt.log_messages(messages.incompatible(*self._input_shapes()) * message_count)
            return False
        # more misuse that TensorRT does not report
        if sample.on_host:
            raise Misuse("an engine with an input in host memory")
        shapes = self._input_shapes()
        if any(address % gpu.alignment for address in self._addresses.values()):
            raise Misuse("an address is not aligned, but kernels may read many bytes at once")
        if self._last is not None and self._last[0] != stream and gpu.pending(*self._last):
            raise Misuse("one context works on two streams at once")
        needed = self._engine.device_memory_size
        if needed:
            gpu.check(self._memory, needed, "the context's memory")
        work = self._work(shapes)
        if sample.compute is SAMPLES["nonzero"].compute:
            gpu.synchronize(stream)
            gpu.push(stream, work)
            gpu.synchronize(stream)  # TensorRT waits for the GPU, which computes the size
            return True
        position = gpu.push(stream, work)
        if position:
            self._last = (stream, position)
            if needed:
                gpu.claim_workspace(self._memory, needed, stream, position)
        return True

    def _work(self, shapes: list[tuple[int, ...]]) -> Callable[[], None]:
        gpu, sample, addresses, memory = self._trt.gpu, self._engine.sample, dict(self._addresses), self._memory
        last_output_shapes = self._last_output_shapes
        allocators, profiler, needed = dict(self._allocators), self._profiler, self._engine.device_memory_size

        def work() -> None:
            if needed:
                gpu.check(memory, needed, "the context's memory")
                gpu.write(memory, np.full(needed, 0xAB, np.uint8))  # as an engine, which overwrites this memory
            inputs = []
            for index, (shape, (dtype, _)) in enumerate(zip(shapes, sample.inputs, strict=True)):
                address, kind = addresses[f"i{index}"], np.dtype(numpy_type(dtype))
                gpu.check(address, int(np.prod(shape)) * kind.itemsize, f"i{index}")
                inputs.append(gpu.read(address, shape, kind))
            for index, array in enumerate(sample.compute(*inputs)):
                name, data = f"o{index}", np.ascontiguousarray(array)
                address = addresses.get(name, 0)
                if name in allocators:
                    address = allocators[name].reallocate_output(name, address, _rounded(data.nbytes), MEMORY_ALIGNMENT)
                    if address % MEMORY_ALIGNMENT:
                        raise Misuse("an output's memory does not have the requested alignment")
                    allocators[name].notify_shape(name, Dims(data.shape))
                    last_output_shapes[name] = data.shape
                gpu.check(address, data.nbytes, name)
                gpu.write(address, data)
            if profiler is not None:
                profiler.report_layer_time("layer", 0.5)

        return work


#: The errors of ``__del__``, which cannot raise errors.
_FAULTS: list[str] = []


def faults() -> list[str]:
    """Return the errors of ``__del__`` since the last call of this function."""
    errors, _FAULTS[:] = list(_FAULTS), []
    return errors
