"""A module that answers as TensorRT 8.6 does to the calls that trtbuild's runtime makes, and computes with NumPy.

`FakeTensorRT(gpu)` is the module. Its answers to the questions of probes.py stand in answers.json, with by whom they were
given: a real TensorRT 8.6 where benchmarks/gpu_record.py recorded them, else assumed. What TensorRT leaves undefined is a
Misuse: a context on two streams at once, in two threads at once, with no memory, with memory that is too small, with
addresses that are not aligned to 256 bytes.

A plan is ``FAKE`` and the name of a `Sample`, padded: what is cut off or altered is no plan.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.runtime.fake_gpu import FakeGpu, Misuse
from tests.runtime.fake_tensorrt.said import Said
from tests.runtime.fake_tensorrt.samples import SAMPLES, Sample, numpy_type

_MAGIC, _SIZE = b"FAKE-PLAN:", 4096


class _DataType(enum.Enum):
    FLOAT, HALF, INT8, INT32, BOOL, UINT8 = range(6)


class _Mode(enum.Enum):
    NONE, INPUT, OUTPUT = range(3)


class _Location(enum.Enum):
    DEVICE, HOST = range(2)


class _Severity(enum.Enum):
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def __str__(self) -> str:
        return f"Severity.{self.name}"


class _Logger:
    INTERNAL_ERROR, ERROR, WARNING = _Severity.INTERNAL_ERROR, _Severity.ERROR, _Severity.WARNING

    def __init__(self) -> None:
        pass

    def log(self, severity: Any, text: str) -> None:
        raise NotImplementedError


class _Base:
    def __init__(self) -> None:
        pass


_DTYPES = {"float32": "FLOAT", "float16": "HALF", "int32": "INT32", "bool": "BOOL", "uint8": "UINT8"}


class FakeTensorRT:
    """The module."""

    __version__ = "8.6.1"
    __name__ = "tensorrt"

    DataType = _DataType
    TensorIOMode = _Mode
    TensorLocation = _Location
    ILogger = _Logger
    IOutputAllocator = _Base
    IProfiler = _Base

    def __init__(self, gpu: FakeGpu, samples: dict[str, Sample] | None = None) -> None:
        self.gpu = gpu
        self.samples = samples or dict(SAMPLES)
        self.logger: Any = None
        #: Contexts that were made, and that are there now.
        self.contexts_made = 0
        self.contexts_alive = 0
        #: Counts of calls of each name.
        self.calls: dict[str, int] = {}
        self.Runtime = lambda logger: _Runtime(self, logger)

    def plan(self, name: str) -> bytes:
        """The plan of a sample."""
        return (_MAGIC + name.encode() + b"\0").ljust(_SIZE, b"\xfe")

    def counted(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1

    def say(self, said: Said) -> None:
        for severity, text in said:
            self.logger.log(_Severity[severity], text)


class _Runtime:
    def __init__(self, trt: FakeTensorRT, logger: Any) -> None:
        self._trt = trt
        trt.logger = trt.logger or logger  # TensorRT keeps the first

    def deserialize_cuda_engine(self, plan: Any) -> _Engine | None:
        data, trt = bytes(plan), self._trt
        if not data.startswith(_MAGIC) or len(data) != _SIZE:
            from tests.runtime.fake_tensorrt import said

            trt.say(said.EMPTY_PLAN if not data else said.CUT_PLAN if data.startswith(_MAGIC) else said.NO_PLAN)
            return None
        name = data[len(_MAGIC) :].partition(b"\0")[0].decode()
        return _Engine(trt, name, trt.samples[name])


class _Engine:
    def __init__(self, trt: FakeTensorRT, name: str, sample: Sample) -> None:
        self.trt = trt
        self.sample = sample
        self.device = trt.gpu.current()
        self.num_optimization_profiles = len(sample.profiles)
        self.tensors = {f"i{k}": entry for k, entry in enumerate(sample.inputs)}
        self.tensors |= {f"o{k}": entry for k, entry in enumerate(sample.outputs)}
        self.num_io_tensors = len(self.tensors)
        self.in_use: list[int] = []  # profiles that a context has, where they are not shared
        from tests.runtime.fake_tensorrt import said

        self.device_memory_size = said.MEMORY_BYTES.get(name, sample.memory_bytes)

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_mode(self, name: str) -> _Mode:
        return _Mode.INPUT if name.startswith("i") else _Mode.OUTPUT

    def get_tensor_dtype(self, name: str) -> _DataType:
        return _DataType[_DTYPES[self.tensors[name][0]]]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name][1]

    def get_tensor_location(self, name: str) -> _Location:
        return _Location.DEVICE

    def get_tensor_profile_shape(self, name: str, profile: int) -> list[tuple[int, ...]]:
        return list(self.sample.profiles[profile][int(name[1:])])

    def create_execution_context_without_device_memory(self) -> _Context:
        self.trt.counted("create_execution_context")
        return _Context(self)


class _Context:
    """What is not a method of the real one begins with an underscore."""

    def __init__(self, engine: _Engine) -> None:
        self._engine, self._trt = engine, engine.trt
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}
        self._memory = 0
        self._profiler: Any = None
        self._last: tuple[int, int] | None = None  # stream and position of what it enqueued last
        self._busy = threading.Lock()
        self._trt.contexts_made += 1
        self._trt.contexts_alive += 1
        dynamic = any(-1 in shape for _, shape in engine.sample.inputs)
        self.active_optimization_profile = 0
        if dynamic and not engine.sample.shared:
            self.active_optimization_profile = -1 if 0 in engine.in_use else 0
            if self.active_optimization_profile == 0:
                engine.in_use.append(0)

    def __del__(self) -> None:
        self._trt.contexts_alive -= 1
        if self._last is not None and self._trt.gpu.pending(*self._last):
            _FAULTS.append("a context went while its work was under way")
        if self.active_optimization_profile in self._engine.in_use:
            self._engine.in_use.remove(self.active_optimization_profile)

    device_memory = property(None, lambda self, address: setattr(self, "_memory", address))

    profiler = property(lambda self: self._profiler, lambda self, value: setattr(self, "_profiler", value))

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        from tests.runtime.fake_tensorrt import said

        engine = self._engine
        if not 0 <= profile < engine.num_optimization_profiles:
            self._trt.say(said.no_such_profile(profile, engine.num_optimization_profiles))
            raise RuntimeError(said.PROFILE_REFUSED)
        dynamic = any(-1 in shape for _, shape in engine.sample.inputs)
        if not engine.sample.shared and dynamic and profile != self.active_optimization_profile:
            if profile in engine.in_use:
                self._trt.say(said.profile_in_use(profile))
                raise RuntimeError(said.PROFILE_REFUSED)
            if self.active_optimization_profile in engine.in_use:
                engine.in_use.remove(self.active_optimization_profile)
            engine.in_use.append(profile)
        if profile != self.active_optimization_profile:
            self._shapes.clear()
        self.active_optimization_profile = profile
        return True

    def set_input_shape(self, name: str, shape: Any) -> bool:
        from tests.runtime.fake_tensorrt import said

        self._trt.counted("set_input_shape")
        shape, engine = tuple(shape), self._engine
        if name not in engine.tensors or not name.startswith("i"):
            self._trt.say(said.not_an_input(name, name in engine.tensors))
            return False
        declared = engine.tensors[name][1]
        if len(shape) != len(declared):
            self._trt.say(said.wrong_rank(name, shape, declared))
            return False
        low, _, high = engine.sample.profiles[self.active_optimization_profile][int(name[1:])]
        for axis, (size, wanted) in enumerate(zip(shape, declared, strict=True)):
            if wanted != -1 and size != wanted:
                self._trt.say(said.wrong_size(name, axis, shape, declared))
                return False
        for axis, size in enumerate(shape):
            if not low[axis] <= size <= high[axis]:
                self._trt.say(said.out_of_range(name, axis, shape, low, high, self.active_optimization_profile))
                return False
        self._shapes[name] = shape
        return True

    def _input_shapes(self) -> list[tuple[int, ...]] | None:
        found = []
        for index, (_, declared) in enumerate(self._engine.sample.inputs):
            shape = self._shapes.get(f"i{index}", declared)
            if -1 in shape:
                return None
            found.append(shape)
        return found

    def infer_shapes(self) -> list[str]:
        from tests.runtime.fake_tensorrt import said

        self._trt.counted("infer_shapes")
        missing = [
            f"i{k}"
            for k, (_, declared) in enumerate(self._engine.sample.inputs)
            if -1 in self._shapes.get(f"i{k}", declared)
        ]
        if missing:
            return missing
        try:
            self._engine.sample.shapes(self._input_shapes() or [])
        except ValueError:
            self._trt.say(said.SHAPES_DO_NOT_GO)
            raise RuntimeError(said.INFERENCE_FAILED) from None
        return []

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        from tests.runtime.fake_tensorrt import said

        engine = self._engine
        if name not in engine.tensors:
            self._trt.say(said.no_tensor(name))
            return said.NO_SHAPE
        if name.startswith("i"):
            return self._shapes.get(name, engine.tensors[name][1])
        shapes = self._input_shapes()
        if shapes is None:
            return engine.tensors[name][1]
        try:
            return tuple(engine.sample.shapes(shapes)[int(name[1:])])
        except ValueError:
            return engine.tensors[name][1]

    def set_tensor_address(self, name: str, address: int) -> bool:
        from tests.runtime.fake_tensorrt import said

        self._trt.counted("set_tensor_address")
        if name not in self._engine.tensors:
            self._trt.say(said.no_tensor_address(name))
            return False
        if not address and name.startswith("o") and said.NULL_OUTPUT_REFUSED:
            self._trt.say(said.null_address(name))
            return False
        self._addresses[name] = address
        return True

    def get_tensor_address(self, name: str) -> int:
        return self._addresses.get(name, 0)

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        self._allocators[name] = allocator
        return True

    def get_max_output_size(self, name: str) -> int:
        from tests.runtime.fake_tensorrt import said

        return said.MAX_OUTPUT_BYTES

    def execute_async_v3(self, stream: int) -> bool:
        if not self._busy.acquire(blocking=False):
            raise Misuse("two threads use one context at once")
        try:
            return self._execute(stream)
        finally:
            self._busy.release()

    def _execute(self, stream: int) -> bool:
        from tests.runtime.fake_tensorrt import said

        trt, gpu, sample = self._trt, self._trt.gpu, self._engine.sample
        trt.counted("execute_async_v3")
        if gpu.current() != self._engine.device:
            raise Misuse("the engine's device is not the current one")
        if stream in (0, 1):
            raise Misuse("an engine on the legacy default stream: TensorRT would wait for the device")
        shapes = self._input_shapes()
        if shapes is None:
            trt.say(said.shape_missing(next(n for n, (_, s) in self._engine.tensors.items() if -1 in s)))
            return False
        for name in self._engine.tensors:
            if not self._addresses.get(name) and name not in self._allocators:
                trt.say(said.address_missing(name))
                return False
        if any(address % gpu.alignment for address in self._addresses.values()):
            raise Misuse("an address that is not aligned: kernels may read many bytes at once")
        if self._last is not None and self._last[0] != stream and gpu.pending(*self._last):
            raise Misuse("one context works on two streams at once")
        needed = self._engine.device_memory_size
        if needed:
            gpu.check(self._memory, needed, "the context's memory")
            if self._memory % 256:
                raise Misuse("the context's memory is not aligned")
        work = self._work(shapes)
        if sample.compute is SAMPLES["nonzero"].compute:
            gpu.synchronize(stream)
            gpu.push(stream, work)
            gpu.synchronize(stream)  # TensorRT waits for the GPU to know the size
            return True
        position = gpu.push(stream, work)
        if position:
            self._last = (stream, position)
            if needed:
                gpu.claim_workspace(self._memory, needed, stream, position)
        return True

    def _work(self, shapes: list[tuple[int, ...]]) -> Callable[[], None]:
        gpu, sample, addresses, memory = self._trt.gpu, self._engine.sample, dict(self._addresses), self._memory
        allocators, profiler, needed = dict(self._allocators), self._profiler, self._engine.device_memory_size

        def work() -> None:
            if needed:
                gpu.check(memory, needed, "the context's memory")
                gpu.write(memory, np.full(needed, 0xAB, np.uint8))
            inputs = []
            for index, (shape, (dtype, _)) in enumerate(zip(shapes, sample.inputs, strict=True)):
                address, kind = addresses[f"i{index}"], np.dtype(numpy_type(dtype))
                gpu.check(address, int(np.prod(shape)) * kind.itemsize, f"i{index}")
                inputs.append(gpu.read(address, shape, kind))
            for index, array in enumerate(sample.compute(*inputs)):
                name, data = f"o{index}", np.ascontiguousarray(array)
                address = addresses.get(name, 0)
                if name in allocators:
                    address = allocators[name].reallocate_output(name, address, max(data.nbytes, 1), 256)
                    allocators[name].notify_shape(name, data.shape)
                gpu.check(address, data.nbytes, name)
                gpu.write(address, data)
            if profiler is not None:
                profiler.report_layer_time("layer", 0.5)

        return work


#: What went wrong where nothing can be raised (a finalizer).
_FAULTS: list[str] = []


def faults() -> list[str]:
    """What went wrong in finalizers since this was asked last."""
    found, _FAULTS[:] = list(_FAULTS), []
    return found
