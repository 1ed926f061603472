"""Memory, streams and graphs from torch. `trtbuild.runtime.memory.device_memory` describes the methods, and has the
rules."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

from trtbuild.errors import CallRefused, EngineError, EnvironmentFault
from trtbuild.runtime.memory import dlpack, tensor_kinds
from trtbuild.runtime.memory.arrays import host_memory_error, wrong_device_error
from trtbuild.runtime.memory.device_memory import LEGACY_STREAM
from trtbuild.runtime.memory.foreign import AdoptedArrays, has_negative_strides


class TorchMemory:
    """The memory of GPU `ordinal`, through torch's caching allocator. Raises EnvironmentFault if torch does not find
    the GPU."""

    requires_contiguous = True
    #: GPU number → handle of its current stream: torch's ``_cuda_getCurrentRawStream``, or None if torch lacks it. It is
    #: faster than `torch.cuda.current_stream`, which creates an object.
    _raw_stream: Callable[[int], int] | None = None

    def __init__(self, ordinal: int) -> None:
        import torch

        count = torch.cuda.device_count()
        if not 0 <= ordinal < count:
            raise EnvironmentFault(
                f"there is no cuda:{ordinal}: PyTorch finds {count or 'no'} GPU{'s' * (count != 1)} here"
            )
        self._initialize(torch, torch.device("cuda", ordinal))
        torch.cuda.init()
        self._has_one_gpu = count == 1
        self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)

    def _initialize(self, torch: Any, device: Any) -> None:
        self.ordinal: int = device.index or 0
        self.device = device
        self._torch = torch
        self._empty = torch.empty
        self.own_types = frozenset({torch.Tensor, torch.nn.Parameter})
        # If `is_neg` is true, the memory contains the values with the opposite sign. Sparse tensors and others that have no
        # address need no check here, because torch raises an error when their address is read.
        self.needs_materializing: Callable[[Any], bool] = torch.Tensor.is_neg
        self._adopted_arrays = AdoptedArrays(self._record)
        self._lock = threading.Lock()
        self._default_stream_substitute: int | None = None

    # -- device and streams

    def is_device_current(self) -> bool:
        return bool(self._has_one_gpu or self._torch.cuda.current_device() == self.ordinal)

    def on_device(self) -> contextlib.AbstractContextManager[Any]:
        return self._torch.cuda.device(self.ordinal)  # type: ignore[no-any-return]

    def stream(self) -> int:
        if self._raw_stream is not None:
            return self._raw_stream(self.ordinal)
        return self._torch.cuda.current_stream(self.device).cuda_stream  # type: ignore[no-any-return]

    def working_stream(self, stream: int) -> int:
        if stream not in (0, LEGACY_STREAM):
            return stream
        with self._lock:
            if self._default_stream_substitute is None:
                with self.on_device():
                    self._default_stream_substitute = _new_ordered_stream(self._torch)
            return self._default_stream_substitute

    def on_stream(self, stream: int) -> contextlib.AbstractContextManager[Any]:
        return self._torch.cuda.stream(self._torch_stream(stream))  # type: ignore[no-any-return]

    def _torch_stream(self, handle: int) -> Any:
        cuda = self._torch.cuda
        if handle in (0, LEGACY_STREAM):
            return cuda.default_stream(self.device)
        return cuda.ExternalStream(handle, device=self.device)

    def _record(self, stream: int) -> Any:
        event = self._torch.cuda.Event()
        event.record(self._torch_stream(stream))
        return event

    def wait(self, *, reader: int, writer: int) -> None:
        self._torch_stream(reader).wait_event(self._record(writer))

    def synchronize(self, stream: int) -> None:
        try:
            self._torch_stream(stream).synchronize()
        except RuntimeError as error:  # torch.cuda's errors are RuntimeErrors
            raise EngineError(f"work on the GPU failed: {error}") from error

    # -- arrays

    def dtype(self, name: str) -> Any:
        return getattr(self._torch, name)

    def empty(self, shape: tuple[int, ...], dtype: Any, stream: int) -> Any:
        return self._empty(shape, dtype=dtype, device=self.device)

    def array_maker(self, shape: tuple[int, ...], dtype: Any, stream: int) -> Callable[[], Any]:
        if self._empty_strided is not None:
            return functools.partial(self._empty_strided, shape, _contiguous_strides(shape), dtype)
        torch = self._torch
        like = torch.empty((), dtype=dtype, device=self.device).expand(shape)
        # `empty_like` takes half the time of torch.empty, which parses more arguments (measured, torch 2.13).
        return functools.partial(torch.empty_like, like, memory_format=torch.contiguous_format)

    @functools.cached_property
    def _empty_strided(self) -> Callable[..., Any] | None:
        """The function with which torch's compiler allocates tensors. It takes a third of the time of torch.empty
        (measured, torch 2.11 and 2.13). None if this torch lacks the function, or has another function of that name."""
        guards = getattr(getattr(self._torch._C, "_dynamo", None), "guards", None)
        allocate = getattr(guards, f"_empty_strided_{self.device.type}", None)
        if allocate is None:
            return None
        with contextlib.suppress(Exception), self.on_device():
            sample = allocate((2, 3), (3, 1), self._torch.float16)
            properties = (tuple(sample.shape), sample.stride(), sample.dtype, sample.device, sample.requires_grad)
            if properties == ((2, 3), (3, 1), self._torch.float16, self.device, False):
                return allocate  # type: ignore[no-any-return]
        return None

    def zeros(self, shape: tuple[int, ...], dtype: Any, stream: int) -> Any:
        return self._torch.zeros(shape, dtype=dtype, device=self.device)

    def view(self, array: Any, shape: tuple[int, ...], dtype: Any, offset_bytes: int = 0) -> Any:
        end = offset_bytes + self._torch.Size(shape).numel() * dtype.itemsize
        return array.view(-1).view(self._torch.uint8)[offset_bytes:end].view(dtype).view(shape)

    def adopt(self, value: Any, name: str, stream: int) -> Any:
        torch = self._torch
        if isinstance(value, torch.Tensor):
            if value.device == self.device:
                return self.materialize(value, name)
            if value.device.type == "cuda":
                raise wrong_device_error(name, str(value.device), self.ordinal)
            raise host_memory_error(name, type(value), self.ordinal)
        tensor = self._from_other_library(value, name, stream)
        self._adopted_arrays.keep_for_call(value)
        return tensor

    def _from_other_library(self, value: Any, name: str, stream: int) -> Any:
        torch = self._torch
        if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
            kind, ordinal = value.__dlpack_device__()
            if int(kind) not in (dlpack.CUDA, dlpack.CUDA_MANAGED):
                raise host_memory_error(name, type(value), self.ordinal)
            if int(ordinal) != self.ordinal:
                raise wrong_device_error(name, f"cuda:{int(ordinal)}", self.ordinal)
            if has_negative_strides(value):
                raise CallRefused(f"{name} has negative strides, which torch does not have", hint="pass a copy of it")
            try:
                return torch.from_dlpack(value)  # torch orders its current stream after the exporter's stream
            except (RuntimeError, BufferError, TypeError) as error:
                raise CallRefused(f"{name} cannot be read by DLPack: {error}") from error
        interface = getattr(value, "__cuda_array_interface__", None)
        if interface is None:
            if hasattr(value, "__array_interface__") or hasattr(value, "__array__"):
                raise host_memory_error(name, type(value), self.ordinal)
            raise CallRefused(f"{name} is a {type(value).__name__}, not a tensor", hint="pass a torch.Tensor")
        writer = interface.get("stream")  # torch ignores this entry, so this method makes `stream` wait
        if writer is not None:
            self.wait(reader=stream, writer=int(writer))
        try:
            tensor = torch.as_tensor(value, device=self.device)
        except (RuntimeError, TypeError, ValueError) as error:
            raise CallRefused(f"{name} cannot be read by its CUDA array interface: {error}") from error
        if interface["data"][0] and tensor.data_ptr() != interface["data"][0]:
            raise CallRefused(f"{name} is not on {self.device}", hint=f"copy it to {self.device} first")
        return tensor

    def materialize(self, array: Any, name: str) -> Any:
        tensor = tensor_kinds.materialize(array, name)
        return tensor_kinds.require_memory(tensor, name) if tensor.device == self.device else tensor

    def as_contiguous(self, array: Any, stream: int) -> Any:
        return array.contiguous()

    def contiguous_copy(self, array: Any, stream: int) -> Any:
        return array.detach().clone(memory_format=self._torch.contiguous_format)

    def copy(self, source: Any, target: Any, stream: int) -> None:
        # In inference mode, autograd records nothing, and a target from an earlier inference mode may be written.
        with self._torch.inference_mode():
            target.copy_(source)

    def record_call(self, stream: int) -> None:
        self._adopted_arrays.record_call(stream)

    def upload(self, data: Any, dtype: str, stream: int) -> Any:
        tensor = self._torch.from_numpy(data)
        torch_dtype = self.dtype(dtype)
        if tensor.dtype != torch_dtype:
            tensor = tensor.view(torch_dtype)  # NumPy does not have bfloat16
        return tensor.to(self.device)

    def download(self, array: Any) -> Any:
        tensor = array.detach().resolve_conj().resolve_neg().cpu()
        if tensor.dtype == self._torch.bfloat16:
            tensor = tensor.view(self._torch.uint16)
        return tensor.numpy()

    def device_of(self, address: int) -> int | None:
        raise NotImplementedError("torch knows where its tensors are")

    # -- graphs

    def capture(self, work: Callable[[int], None]) -> TorchGraph:
        torch = self._torch
        graph = torch.cuda.CUDAGraph()
        capture_stream = torch.cuda.Stream(self.device)
        work_error: EngineError | None = None
        try:
            # "thread_local": other threads may continue to call CUDA. `on_stream` makes the caller's stream current again
            # if the end of the capture fails, because torch.cuda.graph does not.
            with (
                self.on_stream(self.stream()),
                torch.cuda.graph(graph, stream=capture_stream, capture_error_mode="thread_local"),
            ):
                try:
                    work(capture_stream.cuda_stream)
                except EngineError as error:
                    work_error = error
                    raise
        except RuntimeError as error:
            if work_error is not None:  # this is the cause of torch's error
                raise work_error from None
            raise EngineError(f"the run cannot be captured as a CUDA graph: {error}") from error
        return TorchGraph(self, graph)


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor. As in torch, an axis of size 0 counts as 1."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


class TorchGraph:
    """A captured ``torch.cuda.CUDAGraph``."""

    def __init__(self, memory: TorchMemory, graph: Any) -> None:
        self._memory = memory
        self._graph = graph

    def launch(self, stream: int) -> None:
        if stream == self._memory.stream():
            self._graph.replay()
            return
        with self._memory.on_stream(stream):
            self._graph.replay()


def _new_ordered_stream(torch: Any) -> int:
    """Create a stream that CUDA orders with the legacy default stream (CUDA C++ programming guide, "Legacy default
    stream"). Torch's own streams are not ordered with it, because they are cudaStreamNonBlocking."""
    handle = ctypes.c_void_p()
    error = torch.cuda.cudart().cudaStreamCreate(ctypes.addressof(handle))
    if int(error) != 0 or not handle.value:
        raise EngineError(f"cudaStreamCreate: {error}")
    return handle.value
