"""`TorchMemory`, tested with tensors in host memory and with fakes. Without torch, `CudaMemory` is chosen."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.runtime.fake_cuda import FakeDriver
from tests.runtime.fake_gpu import FakeGpu
from tests.runtime.fake_tensorrt import FakeTensorRT
from tests.runtime.rigs import partition
from trtbuild.errors import CallRefused, EngineError, EnvironmentFault
from trtbuild.runtime.calls.call import Call
from trtbuild.runtime.engines.engine_part import EnginePart
from trtbuild.runtime.engines.workspaces import Workspaces
from trtbuild.runtime.memory.choosing import choose_memory
from trtbuild.runtime.memory.cuda_memory import CudaMemory
from trtbuild.runtime.memory.torch_memory import TorchMemory
from trtbuild.toolchain.libraries.execution_table import calls_of
from trtbuild.toolchain.running.execution import TensorRT

#: The handle of a stream.
STREAM = 4096


class HostMemory(TorchMemory):
    """A `TorchMemory` whose tensors are in host memory. It is for tests of the methods that do not need CUDA."""

    def __init__(self, stream: int) -> None:
        self._has_one_gpu = True
        self._handle = stream
        self._initialize(torch, torch.device("cpu"))

    def stream(self) -> int:
        return self._handle

    def synchronize(self, stream: int) -> None:
        pass

    def on_device(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()


def test_an_engine_computes_on_torch_tensors() -> None:
    gpu = FakeGpu(runs_late=False)
    gpu.check = lambda *_: None  # type: ignore[method-assign] - the fake GPU does not know torch's memory
    gpu.alignment = 64  # torch's alignment on the CPU
    trt = FakeTensorRT(gpu)
    calls = calls_of("tensorrt", trt.__version__)
    assert calls is not None
    memory, library = HostMemory(gpu.new_stream(blocking=False)), TensorRT("tensorrt", trt, calls)
    part = EnginePart(library, library.load_engine(trt.plan("pair")), partition("pair"), Workspaces(memory))
    a, b = torch.randn(2, 3), torch.randn(3, 2).T
    total, relu = part([a, b], Call(0, (2, 3), memory.stream(), memory.device))
    torch.testing.assert_close(total, a + b)
    torch.testing.assert_close(relu, a.relu())
    assert total.is_contiguous() and total.dtype == torch.float32


@pytest.mark.parametrize("dtype", ["bool", "float16", "bfloat16", "int64", "float32"])
def test_uploads_and_downloads_values(dtype: str) -> None:
    memory = HostMemory(STREAM)
    data = np.arange(4).astype({"bfloat16": "uint16"}.get(dtype, dtype))  # NumPy has no bfloat16
    tensor = memory.upload(data, dtype, STREAM)
    assert tensor.dtype == memory.dtype(dtype) == getattr(torch, dtype)
    np.testing.assert_array_equal(memory.download(tensor), data)


def test_a_lazily_negated_tensor_is_downloaded_with_its_sign() -> None:
    np.testing.assert_array_equal(HostMemory(STREAM).download(torch._neg_view(torch.ones(2))), [-1, -1])


def test_a_lazily_conjugated_tensor_is_downloaded_with_its_values() -> None:
    conjugate = torch.tensor([1 + 2j]).conj()
    assert conjugate.is_conj()
    np.testing.assert_array_equal(HostMemory(STREAM).download(conjugate), [1 - 2j])


@pytest.mark.parametrize("private_function", [True, False])
@pytest.mark.parametrize("shape", [(), (0, 4), (1,), (2, 1, 5), (2, 0, 3)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float16, torch.int64])
def test_new_tensors_are_contiguous(shape: tuple[int, ...], dtype: torch.dtype, private_function: bool) -> None:
    memory = HostMemory(STREAM)
    assert memory._empty_strided is not None
    if not private_function:
        memory._empty_strided = None
    make = memory.array_maker(shape, dtype, STREAM)
    tensors = [make(), make()]
    for tensor in tensors:
        assert tensor.shape == shape and tensor.stride() == torch.empty(shape).stride()
        assert tensor.dtype == dtype and tensor.device == memory.device and not tensor.requires_grad
    assert not tensors[0].numel() or tensors[0].data_ptr() != tensors[1].data_ptr()


@pytest.mark.parametrize("replacement", [None, lambda *_: torch.ones(7), lambda shape: None])
def test_creates_tensors_without_torchs_private_function(replacement: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C._dynamo.guards, "_empty_strided_cpu", replacement)
    memory = HostMemory(STREAM)
    assert memory._empty_strided is None and memory.array_maker((2, 3), torch.float32, STREAM)().shape == (2, 3)


def test_a_view_of_bytes_shares_their_memory() -> None:
    memory = HostMemory(STREAM)
    raw = memory.zeros((256,), torch.uint8, STREAM)
    view = memory.view(raw, (2, 3), torch.int64)
    assert view.shape == (2, 3) and view.data_ptr() == raw.data_ptr()
    assert memory.view(raw, (0, 3), torch.float32).shape == (0, 3)
    raw[16] = 7
    later = memory.view(raw, (2,), torch.int64, 16)
    assert later.data_ptr() == raw.data_ptr() + 16 and later.tolist() == [7, 0]


def test_a_buffer_from_inference_mode_may_be_written_outside_of_it() -> None:
    """The buffers of a CUDA graph are kept for later calls. The first call creates them, and may run in inference mode."""
    memory = HostMemory(STREAM)
    with torch.inference_mode():
        buffer = memory.empty((2,), torch.float32, STREAM)
    memory.copy(torch.ones(2), buffer, STREAM)
    assert buffer.tolist() == [1, 1]


def test_a_copy_records_no_gradient() -> None:
    """Otherwise a buffer that is kept would also keep the autograd graphs of all calls."""
    memory = HostMemory(STREAM)
    buffer = memory.empty((2,), torch.float32, STREAM)
    memory.copy(torch.ones(2, requires_grad=True) * 2, buffer, STREAM)
    assert buffer.tolist() == [2, 2] and buffer.grad_fn is None and not buffer.requires_grad


class Reversed:
    """A reversed array of CuPy."""

    strides = (-4,)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **_: object) -> object:
        raise AssertionError("torch.from_dlpack would end the process")


def test_refuses_a_reversed_array() -> None:
    memory = HostMemory(STREAM)
    with pytest.raises(CallRefused, match="x has negative strides"):
        memory.adopt(Reversed(), "x", STREAM)


def test_rejects_arrays_in_host_memory_on_a_gpu() -> None:
    memory = HostMemory(STREAM)
    memory.device = torch.device("cuda", 0)
    with pytest.raises(CallRefused, match=r"x is a torch.Tensor in host memory; the engine runs on cuda:0"):
        memory.adopt(torch.zeros(2), "x", STREAM)
    with pytest.raises(CallRefused, match=r"x is a numpy.ndarray in host memory"):
        memory.adopt(np.zeros(2), "x", STREAM)
    with pytest.raises(CallRefused, match=r"x is a int, not a tensor"):
        memory.adopt(3, "x", STREAM)


class FakeCuda:
    """``torch.cuda`` with streams, and with captures whose end raises an error."""

    CUDAGraph = object

    def __init__(self) -> None:
        self.current = self._stream(STREAM)

    def _stream(self, handle: int) -> Any:
        return types.SimpleNamespace(cuda_stream=handle)

    def ExternalStream(self, handle: int, device: object) -> Any:
        return self._stream(handle)

    def Stream(self, device: object) -> Any:
        return self._stream(STREAM + 1)

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextlib.contextmanager
    def graph(self, graph: object, stream: Any, capture_error_mode: str) -> Iterator[None]:
        """As in torch: if the end of the capture fails, `stream` stays current."""
        self.current = stream
        try:
            yield
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


def test_a_failed_capture_raises_the_error_of_the_work_and_restores_the_stream() -> None:
    memory, cuda = HostMemory(STREAM), FakeCuda()
    memory._torch = types.SimpleNamespace(cuda=cuda)
    streams: list[int] = []

    def refuse(stream: int) -> None:
        streams.append(stream)
        raise EngineError("tensorrt refuses to run: not while capturing")

    with pytest.raises(EngineError, match="not while capturing"):
        memory.capture(refuse)
    assert streams == [STREAM + 1] and cuda.current.cuda_stream == STREAM
    with pytest.raises(EngineError, match="cannot be captured as a CUDA graph: CUDA error"):
        memory.capture(streams.append)
    assert len(streams) == 2 and cuda.current.cuda_stream == STREAM


def test_uses_the_driver_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    bindings: Any = types.ModuleType("cuda.bindings")
    bindings.driver = FakeDriver(FakeGpu())
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    assert isinstance(choose_memory(0), CudaMemory)


def test_without_a_gpu_for_torch_and_without_cuda_python_the_error_names_the_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for name in ("cuda", "cuda.bindings"):  # a CUDA build of torch has loaded both
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        EnvironmentFault, match="torch cannot use a GPU here, and cuda-bindings is not installed"
    ) as caught:
        choose_memory(0)
    assert "pip install" in str(caught.value.hint)
