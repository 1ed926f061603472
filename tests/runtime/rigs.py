"""A rig for tests of engines: fakes of TensorRT and CUDA, and the runtime that uses them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.runtime import fake_tensorrt
from tests.runtime.fake_cuda import FakeDriver
from tests.runtime.fake_gpu import FakeGpu
from tests.runtime.fake_tensorrt import FakeTensorRT
from tests.runtime.fake_tensorrt.samples import SAMPLES, WIDTH
from trtbuild.core.partition.partitions import Partition, TensorType
from trtbuild.runtime.calls.call import Call
from trtbuild.runtime.engines.engine_part import EnginePart
from trtbuild.runtime.engines.workspaces import Workspaces
from trtbuild.runtime.memory.arrays import DeviceArray
from trtbuild.runtime.memory.cuda_memory import CudaMemory
from trtbuild.toolchain.libraries.execution_table import calls_of
from trtbuild.toolchain.running.execution import TensorRT

#: The output sizes of the small engines in `SAMPLES`, as in a package's index. ``["sym", 0]`` is the size of the first
#: dynamic axis of the first input, and ``["sym", 1]`` is that of the second one. A size with ``data`` depends on values.
_SIZES: dict[str, list[tuple[Any, ...]]] = {
    "affine": [(["sym", 0], 4)],
    "unshared": [(["sym", 0], 4)],
    "empty": [(["sym", 0], 4)],
    "pair": [(["sym", 0], ["sym", 1])] * 2,
    "half": [(2, 3)],
    "unshared_static": [(2, 3)],
    "shaped": [(["data", 0], ["data", 1])],
    "scalar": [()],
    "kinds": [(["sym", 0],)] * 2,
    "nonzero": [(1, ["data", 0])],
    "wide": [(["sym", 0], WIDTH)],
}


def partition(sample: str) -> Partition:
    """Return the partition that the engine of a sample computes."""
    spec = SAMPLES[sample]
    return Partition(
        name=sample,
        kind="tensorrt",
        graph="0" * 64,
        weights=(),
        inputs=tuple((f"input:{k}", TensorType(dtype, shape)) for k, (dtype, shape) in enumerate(spec.inputs)),
        outputs=tuple(TensorType(dtype, size) for (dtype, _), size in zip(spec.outputs, _SIZES[sample], strict=True)),
        calls=(),
    )


@dataclass
class Rig:
    """The fakes, and the runtime's objects that use them."""

    gpu: FakeGpu
    driver: FakeDriver
    trt: FakeTensorRT
    memory: CudaMemory
    library: TensorRT
    workspaces: Workspaces

    def part(self, sample: str, **options: Any) -> EnginePart:
        with self.memory.on_device():
            engine = self.library.load_engine(memoryview(self.trt.plan(sample)))
        return EnginePart(self.library, engine, partition(sample), self.workspaces, **options)

    def array(self, data: Any, stream: int) -> DeviceArray:
        values = np.asarray(data)
        with self.memory.on_device():
            return self.memory.upload(values, str(values.dtype), stream)

    def values(self, *shape: int, stream: int, start: int = 0) -> tuple[DeviceArray, Any]:
        """Return the numbers from `start` on, as an array of the fake GPU and as a NumPy array."""
        data = (np.arange(np.prod(shape)) + start).reshape(shape).astype(np.float32)
        return self.array(data, stream), data

    def stream(self) -> int:
        return self.gpu.new_stream(blocking=False)

    def call(self, *sizes: int, stream: int, profile: int = 0) -> Call:
        return Call(profile, sizes, stream, self.memory.device)


@pytest.fixture
def rig() -> Iterator[Rig]:
    gpu = FakeGpu()
    driver, trt = FakeDriver(gpu), FakeTensorRT(gpu)
    memory = CudaMemory(driver, 0)
    calls = calls_of("tensorrt", trt.__version__)
    assert calls is not None
    yield Rig(gpu, driver, trt, memory, TensorRT("tensorrt", trt, calls), Workspaces(memory))
    gc.collect()
    assert fake_tensorrt.faults() == []
