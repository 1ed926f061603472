"""Arrays without torch: accepted arrays, rejected arrays, and the order of work on streams. A fake replaces CUDA."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.runtime.fake_cuda import CUresult, FakeDriver
from tests.runtime.fake_gpu import FakeGpu
from trtbuild.errors import CallRefused, EngineError, EnvironmentFault
from trtbuild.runtime.memory import dlpack
from trtbuild.runtime.memory.arrays import DeviceArray
from trtbuild.runtime.memory.cuda_memory import CudaMemory

FLOATS = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def gpu() -> FakeGpu:
    return FakeGpu(devices=2)


@pytest.fixture
def memory(gpu: FakeGpu) -> Iterator[CudaMemory]:
    memory = CudaMemory(FakeDriver(gpu), 0)
    with memory.on_device():
        yield memory


class Interface:
    """Another library's array, which has only the CUDA array interface."""

    def __init__(self, array: DeviceArray, **changes: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **changes}


class Capsules:
    """Another library's array, which supports DLPack. With `is_old`, it supports only DLPack before 1.0."""

    def __init__(self, array: DeviceArray, device: tuple[int, int] = (dlpack.CUDA, 0), is_old: bool = False) -> None:
        self.array, self.device, self.is_old = array, device, is_old
        self.requested_streams: list[int | None] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: int | None = None, **more: Any) -> object:
        if self.is_old and more:
            raise TypeError("unexpected keyword argument")
        self.requested_streams.append(stream)
        return self.array.__dlpack__(stream=stream, **more)


@pytest.mark.parametrize(
    ("dtype", "data"),
    [
        ("float32", FLOATS),
        ("float16", FLOATS.astype(np.float16)),
        ("int64", FLOATS.astype(np.int64)),
        ("bool", FLOATS > 2),
        ("float32", np.float32(3)),
        ("bfloat16", np.arange(4, dtype=np.uint16)),
    ],
)
def test_uploads_and_downloads_values(memory: CudaMemory, dtype: str, data: Any) -> None:
    array = memory.upload(data, dtype, memory.stream())
    assert array.shape == np.shape(data) and array.dtype == dtype and array.device == "cuda:0"
    np.testing.assert_array_equal(array.numpy(), data)


@pytest.mark.parametrize("kind", ["capsules", "old capsules", "interface"])
def test_arrays_of_other_libraries_are_read_without_a_copy(memory: CudaMemory, kind: str) -> None:
    stream = memory.stream()
    own = memory.upload(FLOATS, "float32", stream)
    foreign: Any = Interface(own) if kind == "interface" else Capsules(own, is_old=kind == "old capsules")
    array = memory.adopt(foreign, "x", stream)
    assert array.data_ptr() == own.data_ptr()
    np.testing.assert_array_equal(array.numpy(), FLOATS)


def test_the_reader_waits_for_the_writers_stream(gpu: FakeGpu, memory: CudaMemory) -> None:
    writer, reader = gpu.new_stream(blocking=False), gpu.new_stream(blocking=False)
    for kind in (Interface, Capsules, lambda array: array):
        target = memory.empty((2, 3), "float32", writer)
        memory.synchronize(writer)
        gpu.push(writer, lambda address=target.address: gpu.write(address, FLOATS))
        array = memory.adopt(kind(target), "x", reader)
        copy = memory.contiguous_copy(array, reader)
        np.testing.assert_array_equal(copy.numpy(), FLOATS)


def test_passes_the_readers_stream_to_dlpack(memory: CudaMemory) -> None:
    own = memory.upload(FLOATS, "float32", memory.stream())
    for stream, expected in ((0, 1), (memory.stream(), memory.stream())):  # DLPack's handle of the default stream is 1
        foreign = Capsules(own)
        memory.adopt(foreign, "x", stream)
        assert foreign.requested_streams == [expected]


def test_reads_an_interface_without_a_stream(memory: CudaMemory) -> None:
    own = memory.upload(FLOATS, "float32", memory.stream())
    array = memory.adopt(Interface(own, stream=None), "x", memory.stream())
    np.testing.assert_array_equal(array.numpy(), FLOATS)


def test_reads_strided_arrays(memory: CudaMemory) -> None:
    stream = memory.stream()
    own = memory.upload(FLOATS, "float32", stream)
    transposed = memory.adopt(Interface(own, shape=(3, 2), strides=(4, 12)), "x", stream)
    assert not transposed.is_contiguous()
    np.testing.assert_array_equal(transposed.numpy(), FLOATS.T)
    packed = memory.as_contiguous(transposed, stream)
    assert packed.is_contiguous()
    np.testing.assert_array_equal(packed.numpy(), FLOATS.T)
    rows = memory.adopt(Interface(own, shape=(2, 2), strides=(12, 4)), "x", stream)
    np.testing.assert_array_equal(rows.numpy(), FLOATS[:, :2])
    same = memory.adopt(Interface(own, strides=(12, 4)), "x", stream)
    assert same.is_contiguous()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (FLOATS, r"x is a numpy.ndarray in host memory; the engine runs on cuda:0"),
        (np.float32(3), r"x is a numpy.float32 in host memory"),
        ([1, 2], r"x is a list, not an array"),
        (None, r"x is a NoneType, not an array"),
    ],
)
def test_rejects_arrays_on_the_host_and_other_objects(memory: CudaMemory, value: object, message: str) -> None:
    with pytest.raises(CallRefused, match=message):
        memory.adopt(value, "x", memory.stream())


def test_rejects_arrays_on_another_gpu(gpu: FakeGpu, memory: CudaMemory) -> None:
    own = memory.upload(FLOATS, "float32", memory.stream())
    with pytest.raises(CallRefused, match="x is on cuda:1; the engine runs on cuda:0"):
        memory.adopt(Capsules(own, device=(dlpack.CUDA, 1)), "x", memory.stream())
    other = CudaMemory(FakeDriver(gpu), 1)
    with other.on_device(), pytest.raises(CallRefused, match="x is on cuda:0; the engine runs on cuda:1"):
        other.adopt(own, "x", other.stream())


def test_rejects_pointers_to_the_host(memory: CudaMemory) -> None:
    own = memory.upload(FLOATS, "float32", memory.stream())
    with pytest.raises(CallRefused, match="in host memory"):
        memory.adopt(Interface(own, data=(FLOATS.ctypes.data, False)), "x", memory.stream())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"typestr": "<c8"}, "x has elements of type <c8"),
        ({"mask": 1}, "x is a masked array"),
        ({"strides": (12, 3)}, "not a multiple of its element size"),
    ],
)
def test_rejects_unsupported_interfaces(memory: CudaMemory, changes: dict[str, Any], message: str) -> None:
    own = memory.upload(FLOATS, "float32", memory.stream())
    with pytest.raises(CallRefused, match=message):
        memory.adopt(Interface(own, **changes), "x", memory.stream())


def test_rejects_lazily_negated_arrays(memory: CudaMemory) -> None:
    class Lazy(Capsules):
        def is_neg(self) -> bool:
            return True

    own = memory.upload(FLOATS, "float32", memory.stream())
    with pytest.raises(CallRefused, match="x has a negation that PyTorch has not computed yet"):
        memory.adopt(Lazy(own), "x", memory.stream())


@pytest.mark.parametrize("is_passed_again", [False, True], ids=["an input", "an output that is passed again"])
def test_an_array_of_another_library_is_kept_until_the_call_has_finished(
    gpu: FakeGpu, memory: CudaMemory, is_passed_again: bool
) -> None:
    stream = gpu.new_stream(blocking=False)
    foreign = Interface(memory.upload(FLOATS, "float32", stream))
    alive = weakref.ref(foreign)
    array = memory.adopt(foreign, "x", stream)
    if is_passed_again:
        memory.record_call(stream)
        memory.synchronize(stream)
        array = memory.view(array, (6,), "float32")  # an output in the same memory
        memory.adopt(array, "x", stream)
    gpu.push(stream, lambda: None)  # stands for the work of the call
    memory.record_call(stream)
    del foreign, array
    gc.collect()
    memory.adopt(new_array(memory, stream), "y", stream)
    assert alive() is not None
    memory.synchronize(stream)
    memory.adopt(new_array(memory, stream), "y", stream)
    gc.collect()
    assert alive() is None


def new_array(memory: CudaMemory, stream: int) -> Interface:
    return Interface(memory.empty((1,), "float32", stream))


def test_an_array_supports_dlpack_and_the_array_interface(gpu: FakeGpu, memory: CudaMemory) -> None:
    stream = gpu.new_stream(blocking=False)
    array = memory.upload(FLOATS, "float32", stream)
    assert array.__dlpack_device__() == (dlpack.CUDA, 0)
    interface = array.__cuda_array_interface__
    assert interface["version"] == 3 and interface["stream"] == stream and interface["data"] == (array.address, False)
    for version in (None, (1, 0)):
        capsule = dlpack.consume_capsule(array.__dlpack__(stream=stream, max_version=version))
        assert (capsule.address, capsule.shape, capsule.dtype) == (array.address, (2, 3), "float32")
        assert (capsule.device_type, capsule.device_id) == (dlpack.CUDA, 0)


def test_the_default_stream_has_the_handle_1_in_the_array_interface(memory: CudaMemory) -> None:
    assert memory.empty((1,), "float32", 0).__cuda_array_interface__["stream"] == 1


def test_a_reader_on_another_stream_waits_for_the_writer(gpu: FakeGpu, memory: CudaMemory) -> None:
    writer, reader = gpu.new_stream(blocking=False), gpu.new_stream(blocking=False)
    array = memory.empty((2, 3), "float32", writer)
    gpu.push(writer, lambda: gpu.write(array.address, FLOATS))
    array.__dlpack__(stream=reader)
    gpu.synchronize(reader)
    np.testing.assert_array_equal(gpu.read(array.address, (2, 3), np.float32), FLOATS)


def test_dlpack_refuses_copies_and_other_devices(memory: CudaMemory) -> None:
    array = memory.empty((1,), "float32", 0)
    with pytest.raises(BufferError, match="does not copy"):
        array.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="cuda:0"):
        array.__dlpack__(dl_device=(dlpack.CPU, 0))


def test_bfloat16_has_no_array_interface(memory: CudaMemory) -> None:
    assert not hasattr(memory.empty((1,), "bfloat16", 0), "__cuda_array_interface__")


def test_freed_memory_is_reused_on_its_stream(gpu: FakeGpu, memory: CudaMemory) -> None:
    stream = gpu.new_stream(blocking=False)
    first = memory.zeros((2, 3), "float32", stream)
    address = first.address
    before = gpu.allocations
    del first
    second = memory.empty((2, 3), "float32", stream)
    assert second.address == address and gpu.allocations == before


def test_each_thread_has_a_stream_that_is_ordered_with_the_default_one(gpu: FakeGpu, memory: CudaMemory) -> None:
    stream = memory.stream()
    assert stream == memory.stream() and gpu.streams[stream].blocking
    with memory.on_stream(77):
        assert memory.stream() == 77
    assert memory.stream() == stream
    streams: list[int] = []

    def work() -> None:
        with memory.on_device():
            streams.append(memory.stream())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (other,) = streams
    assert other != stream and gpu.streams[other].blocking


def test_raises_errors_of_the_driver(gpu: FakeGpu) -> None:
    driver = FakeDriver(gpu)
    memory = CudaMemory(driver, 0)
    driver.fails["cuStreamSynchronize"] = CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(EngineError, match="CUDA_ERROR_INVALID_VALUE: cuda_error_invalid_value"):
        memory.synchronize(0)


def test_a_missing_gpu_raises_environment_fault(gpu: FakeGpu) -> None:
    with pytest.raises(EnvironmentFault, match=r"there is no cuda:2: the CUDA driver finds 2 GPUs"):
        CudaMemory(FakeDriver(gpu), 2)
    driver = FakeDriver(gpu)
    driver.fails["cuInit"] = CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(EnvironmentFault, match="there is no CUDA device here"):
        CudaMemory(driver, 0)

    def missing(flags: int) -> Any:
        raise RuntimeError("Failed to dlopen libcuda.so.1")

    driver = FakeDriver(gpu)
    driver.cuInit = missing  # type: ignore[method-assign]
    with pytest.raises(EnvironmentFault, match="Failed to dlopen libcuda"):
        CudaMemory(driver, 0)


@pytest.mark.parametrize("stream", [0, 4096])
def test_an_array_can_be_read_without_a_current_device(gpu: FakeGpu, stream: int) -> None:
    memory = CudaMemory(FakeDriver(gpu), 0)
    stream = stream and gpu.new_stream(blocking=False)
    with memory.on_device():
        array = memory.upload(FLOATS, "float32", stream)
    assert gpu.current() is None
    np.testing.assert_array_equal(array.numpy(), FLOATS)
    capsule = array.__dlpack__(stream=gpu.new_stream(blocking=False))
    assert dlpack.consume_capsule(capsule).address == array.address
    assert gpu.current() is None


def test_memory_of_the_default_stream_is_freed_without_a_current_device(gpu: FakeGpu) -> None:
    memory = CudaMemory(FakeDriver(gpu), 0)
    with memory.on_device():
        first = memory.empty((2, 3), "float32", 0)
    address, before = first.address, gpu.allocations
    del first
    with memory.on_device():
        second = memory.empty((2, 3), "float32", 0)
    assert second.address == address and gpu.allocations == before


def test_a_thread_makes_a_stream_if_another_thread_takes_the_last_idle_one(gpu: FakeGpu, memory: CudaMemory) -> None:
    class Taken(list[int]):
        """An empty list that reports length 1, as if another thread took the last stream between `len` and `pop`."""

        def __len__(self) -> int:
            return 1

    memory.idle_streams = Taken()
    stream = memory.stream()
    assert gpu.streams[stream].blocking


def test_a_stream_that_cannot_be_made_leaves_no_idle_stream(gpu: FakeGpu, recwarn: pytest.WarningsRecorder) -> None:
    driver = FakeDriver(gpu)
    memory = CudaMemory(driver, 0)
    driver.fails["cuStreamCreate"] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(EngineError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        memory.stream()
    gc.collect()
    assert memory.idle_streams == [] and not recwarn.list
