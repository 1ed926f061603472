"""Arrays without torch: what is taken, what is refused, and who waits for whom. On the fake of CUDA."""

from __future__ import annotations

import gc
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
    """Somebody's array that has the CUDA array interface alone."""

    def __init__(self, array: DeviceArray, **changes: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **changes}


class Capsules:
    """Somebody's array that speaks DLPack; `before` is for one from before max_version."""

    def __init__(self, array: DeviceArray, device: tuple[int, int] = (2, 0), before: bool = False) -> None:
        self.array, self.device, self.before = array, device, before
        self.asked: list[int | None] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: int | None = None, **more: Any) -> object:
        if self.before and more:
            raise TypeError("unexpected keyword argument")
        self.asked.append(stream)
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
def test_values_go_there_and_come_back(memory: CudaMemory, dtype: str, data: Any) -> None:
    array = memory.upload(data, dtype, memory.stream())
    assert array.shape == np.shape(data) and array.dtype == dtype and array.device == "cuda:0"
    np.testing.assert_array_equal(array.numpy(), data)


@pytest.mark.parametrize("kind", ["capsules", "old capsules", "interface"])
def test_arrays_of_others_are_read_where_they_lie(memory: CudaMemory, kind: str) -> None:
    stream = memory.stream()
    mine = memory.upload(FLOATS, "float32", stream)
    given: Any = Interface(mine) if kind == "interface" else Capsules(mine, before=kind == "old capsules")
    array = memory.adopt(given, "x", stream)
    assert array.data_ptr() == mine.data_ptr()
    np.testing.assert_array_equal(array.numpy(), FLOATS)


def test_the_reader_waits_for_the_writers_stream(gpu: FakeGpu, memory: CudaMemory) -> None:
    writer, reader = gpu.new_stream(blocking=False), gpu.new_stream(blocking=False)
    for kind in (Interface, Capsules, lambda array: array):
        target = memory.empty((2, 3), "float32", writer)
        memory.synchronize(writer)
        gpu.push(writer, lambda address=target.address: gpu.write(address, FLOATS))
        array = memory.adopt(kind(target), "x", reader)
        copy = memory.packed(array, reader)
        np.testing.assert_array_equal(copy.numpy(), FLOATS)


def test_dlpack_gets_the_readers_stream(memory: CudaMemory) -> None:
    mine = memory.upload(FLOATS, "float32", memory.stream())
    for stream, told in ((0, 1), (memory.stream(), memory.stream())):
        given = Capsules(mine)
        memory.adopt(given, "x", stream)
        assert given.asked == [told]


def test_an_interface_without_a_stream_is_read_without_waiting(memory: CudaMemory) -> None:
    mine = memory.upload(FLOATS, "float32", memory.stream())
    array = memory.adopt(Interface(mine, stream=None), "x", memory.stream())
    np.testing.assert_array_equal(array.numpy(), FLOATS)


def test_strides_are_followed(memory: CudaMemory) -> None:
    stream = memory.stream()
    mine = memory.upload(FLOATS, "float32", stream)
    turned = memory.adopt(Interface(mine, shape=(3, 2), strides=(4, 12)), "x", stream)
    assert not turned.is_contiguous()
    np.testing.assert_array_equal(turned.numpy(), FLOATS.T)
    packed = memory.as_contiguous(turned, stream)
    assert packed.is_contiguous()
    np.testing.assert_array_equal(packed.numpy(), FLOATS.T)
    rows = memory.adopt(Interface(mine, shape=(2, 2), strides=(12, 4)), "x", stream)
    np.testing.assert_array_equal(rows.numpy(), FLOATS[:, :2])
    same = memory.adopt(Interface(mine, strides=(12, 4)), "x", stream)
    assert same.is_contiguous()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (FLOATS, r"x is a numpy.ndarray in host memory; the engine runs on cuda:0"),
        (np.float32(3), r"x is a numpy.float32 in host memory"),
        ([1, 2], r"x is a list, not an array"),
        (None, r"x is a NoneType, not an array"),
    ],
)
def test_rejects_arrays_on_the_host(memory: CudaMemory, value: object, said: str) -> None:
    with pytest.raises(CallRefused, match=said):
        memory.adopt(value, "x", memory.stream())


def test_rejects_arrays_on_another_gpu(gpu: FakeGpu, memory: CudaMemory) -> None:
    mine = memory.upload(FLOATS, "float32", memory.stream())
    with pytest.raises(CallRefused, match="x is on cuda:1; the engine runs on cuda:0"):
        memory.adopt(Capsules(mine, device=(2, 1)), "x", memory.stream())
    other = CudaMemory(FakeDriver(gpu), 1)
    with other.on_device(), pytest.raises(CallRefused, match="x is on cuda:0; the engine runs on cuda:1"):
        other.adopt(mine, "x", other.stream())


def test_pointers_to_the_host_are_refused(memory: CudaMemory) -> None:
    mine = memory.upload(FLOATS, "float32", memory.stream())
    with pytest.raises(CallRefused, match="in host memory"):
        memory.adopt(Interface(mine, data=(FLOATS.ctypes.data, False)), "x", memory.stream())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"typestr": "<c8"}, "x has elements of type <c8"),
        ({"mask": 1}, "x is a masked array"),
        ({"strides": (12, 3)}, "not a multiple of its element size"),
    ],
)
def test_rejects_unsupported_interfaces(memory: CudaMemory, changes: dict[str, Any], said: str) -> None:
    mine = memory.upload(FLOATS, "float32", memory.stream())
    with pytest.raises(CallRefused, match=said):
        memory.adopt(Interface(mine, **changes), "x", memory.stream())


def test_rejects_lazily_negated_arrays(memory: CudaMemory) -> None:
    class Lazy(Capsules):
        def is_neg(self) -> bool:
            return True

    mine = memory.upload(FLOATS, "float32", memory.stream())
    with pytest.raises(CallRefused, match="x is negated only when it is read"):
        memory.adopt(Lazy(mine), "x", memory.stream())


def test_an_adopted_array_is_kept_until_the_call_has_finished(gpu: FakeGpu, memory: CudaMemory) -> None:
    stream = gpu.new_stream(blocking=False)
    given = Interface(memory.upload(FLOATS, "float32", stream))
    alive = weakref.ref(given)
    memory.adopt(given, "x", stream)
    gpu.push(stream, lambda: None)  # the call
    memory.called(stream)
    del given
    gc.collect()
    memory.adopt(memory_of(memory, stream), "y", stream)
    assert alive() is not None
    memory.synchronize(stream)
    memory.adopt(memory_of(memory, stream), "y", stream)
    gc.collect()
    assert alive() is None


def memory_of(memory: CudaMemory, stream: int) -> Interface:
    return Interface(memory.empty((1,), "float32", stream))


def test_an_array_speaks_dlpack_and_the_array_interface(gpu: FakeGpu, memory: CudaMemory) -> None:
    stream = gpu.new_stream(blocking=False)
    array = memory.upload(FLOATS, "float32", stream)
    assert array.__dlpack_device__() == (dlpack.CUDA, 0)
    interface = array.__cuda_array_interface__
    assert interface["version"] == 3 and interface["stream"] == stream and interface["data"] == (array.address, False)
    for version in (None, (1, 0)):
        taken = dlpack.take(array.__dlpack__(stream=stream, max_version=version))
        assert (taken.address, taken.shape, taken.dtype) == (array.address, (2, 3), "float32")
        assert (taken.device_type, taken.device_id) == (dlpack.CUDA, 0)


def test_an_array_on_the_default_stream_names_it_as_the_interface_wants_it(memory: CudaMemory) -> None:
    assert memory.empty((1,), "float32", 0).__cuda_array_interface__["stream"] == 1


def test_a_reader_on_another_stream_waits_for_the_writer(gpu: FakeGpu, memory: CudaMemory) -> None:
    writer, reader = gpu.new_stream(blocking=False), gpu.new_stream(blocking=False)
    array = memory.empty((2, 3), "float32", writer)
    gpu.push(writer, lambda: gpu.write(array.address, FLOATS))
    array.__dlpack__(stream=reader)
    gpu.synchronize(reader)
    np.testing.assert_array_equal(gpu.read(array.address, (2, 3), np.float32), FLOATS)


def test_copies_and_other_devices_are_not_made_by_dlpack(memory: CudaMemory) -> None:
    array = memory.empty((1,), "float32", 0)
    with pytest.raises(BufferError, match="a copy"):
        array.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="cuda:0"):
        array.__dlpack__(dl_device=(1, 0))


def test_bfloat16_has_no_array_interface(memory: CudaMemory) -> None:
    assert not hasattr(memory.empty((1,), "bfloat16", 0), "__cuda_array_interface__")


def test_memory_goes_back_behind_its_streams_work_and_is_used_again(gpu: FakeGpu, memory: CudaMemory) -> None:
    stream = gpu.new_stream(blocking=False)
    first = memory.filled((2, 3), "float32", stream)
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


def test_an_error_of_the_driver_is_raised(gpu: FakeGpu) -> None:
    driver = FakeDriver(gpu)
    memory = CudaMemory(driver, 0)
    driver.fails["cuStreamSynchronize"] = CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(EngineError, match="CUDA_ERROR_INVALID_VALUE: cuda_error_invalid_value"):
        memory.synchronize(0)


def test_a_gpu_that_is_not_there_is_a_fault_of_the_machine(gpu: FakeGpu) -> None:
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
