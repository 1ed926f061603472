"""A fake TensorRT module. It answers the calls of trtbuild's runtime as TensorRT 8.6 does, and computes with NumPy.

The calls in probes.py have the same answers as in a real TensorRT 8.6: benchmarks/gpu_record.py wrote its answers to
recording.json. Where the real library ends the process, the fake raises `ProcessEnded`. Misuse that the real library does
not report raises `Misuse`: for example a context on two streams at once, or an address that is not aligned to 256 bytes.

A plan (a serialized engine) is ``FAKE-PLAN:``, the name of a `Sample`, and padding to 4096 bytes.
"""

from __future__ import annotations

from typing import Any

from tests.runtime.fake_gpu import FakeGpu
from tests.runtime.fake_tensorrt import messages
from tests.runtime.fake_tensorrt.context import _Context, faults
from tests.runtime.fake_tensorrt.kinds import (
    DTYPES,
    Base,
    DataType,
    Dims,
    Location,
    Logger,
    Mode,
    ProcessEnded,
    Severity,
)
from tests.runtime.fake_tensorrt.samples import SAMPLES, Sample

__all__ = ["FakeTensorRT", "ProcessEnded", "faults"]

_MAGIC, _SIZE = b"FAKE-PLAN:", 4096


class FakeTensorRT:
    """The fake module."""

    __version__ = "8.6.1"
    __name__ = "tensorrt"

    DataType = DataType
    TensorIOMode = Mode
    TensorLocation = Location
    ILogger = Logger
    IOutputAllocator = Base
    IProfiler = Base

    def __init__(self, gpu: FakeGpu, samples: dict[str, Sample] | None = None) -> None:
        self.gpu = gpu
        self.samples = samples or dict(SAMPLES)
        self.logger: Any = None
        #: The number of contexts that were created, and that still exist.
        self.contexts_made = 0
        self.contexts_alive = 0
        #: Name of a method → the number of its calls.
        self.calls: dict[str, int] = {}
        self.Runtime = lambda logger: _Runtime(self, logger)

    def plan(self, name: str) -> bytes:
        """Return the plan of a sample."""
        return (_MAGIC + name.encode() + b"\0").ljust(_SIZE, b"\xfe")

    def count_call(self, name: str) -> None:
        """Count a call of the method `name`."""
        self.calls[name] = self.calls.get(name, 0) + 1

    def log_messages(self, lines: messages.Messages) -> None:
        """Log the messages."""
        for severity, text in lines:
            self.logger.log(Severity[severity], text)


class _Runtime:
    def __init__(self, trt: FakeTensorRT, logger: Any) -> None:
        self._trt = trt
        trt.logger = trt.logger or logger  # TensorRT uses the logger of the first runtime

    def deserialize_cuda_engine(self, plan: Any) -> _Engine | None:
        data, trt = bytes(plan), self._trt
        error: messages.Messages = []
        if not data:
            error = messages.EMPTY_PLAN
        elif not data.startswith(_MAGIC):
            error = messages.INVALID_PLAN
        elif len(data) != _SIZE:
            error = messages.TRUNCATED_PLAN
        if error:
            trt.log_messages(error)
            return None
        name = data[len(_MAGIC) :].partition(b"\0")[0].decode()
        return _Engine(trt, name, trt.samples[name])


class _Engine:
    def __init__(self, trt: FakeTensorRT, name: str, sample: Sample) -> None:
        self.trt = trt
        self.sample = sample
        self.device = trt.gpu.current()
        self.num_optimization_profiles = len(sample.profiles)
        tensors = {f"i{k}": entry for k, entry in enumerate(sample.inputs)}
        tensors |= {f"o{k}": entry for k, entry in enumerate(sample.outputs)}
        self.tensors = {name: tensors[name] for name in sample.order or tensors}
        self.num_io_tensors = len(self.tensors)
        #: Whether only one context at a time may use a profile. If all input shapes are static, several contexts may.
        self.keeps_profiles_apart = not sample.shared and any(-1 in shape for _, shape in sample.inputs)
        self.in_use: list[int] = []  # the profiles that contexts use, if `keeps_profiles_apart`
        self.device_memory_size = sample.memory_bytes

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_mode(self, name: str) -> Mode:
        return Mode.INPUT if name.startswith("i") else Mode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType[DTYPES[self.tensors[name][0]]]

    def get_tensor_shape(self, name: str) -> Dims:
        if not self.has(name, "getTensorShape"):
            return Dims(None)
        return Dims(self.tensors[name][1])

    def get_tensor_location(self, name: str) -> Location:
        self.has(name, "getTensorLocation")
        return Location.HOST if self.is_host(name) else Location.DEVICE

    def is_shape_inference_io(self, name: str) -> bool:
        self.has(name, "isShapeInferenceIO")
        return self.is_host(name)

    def get_tensor_profile_shape(self, name: str, profile: int) -> list[Dims]:
        if self.is_host(name):
            return [Dims(self.tensors[name][1])] * 3
        return [Dims(shape) for shape in self.sample.profiles[profile][int(name[1:])]]

    def create_execution_context_without_device_memory(self) -> _Context:
        self.trt.count_call("create_execution_context")
        return _Context(self)

    # -- methods that the real class does not have

    def has(self, name: str, call: str) -> bool:
        """Whether the engine has the tensor `name`. If not, log TensorRT's error for `call`."""
        if name not in self.tensors:
            self.trt.log_messages(messages.no_tensor(call, name))
        return name in self.tensors

    def is_host(self, name: str) -> bool:
        return name in {f"i{index}" for index in self.sample.on_host}
