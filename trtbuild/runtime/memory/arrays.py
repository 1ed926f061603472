"""Arrays in device memory without torch: new arrays, or wrapped arrays of other libraries.

Rules
1. A wrapped array is not copied. Its `owner` keeps the memory alive: the other library's object, or an object that calls
   the deleter of a DLPack capsule.
2. The `stream` of an array is the stream of the last write to its memory, if this stream is known. When an array is
   wrapped, the stream of the call waits for that write, and becomes the `stream` of the wrapped array. Readers on other
   streams wait for the work on `stream` (CUDA array interface 3, "Synchronization"; ``__dlpack__(stream=…)``).
3. An array in host memory is refused: nothing is uploaded.
4. The legacy default stream has two handles, 0 and 1. DLPack and the CUDA array interface allow only 1.
"""

from __future__ import annotations

import math
from typing import Any

from trtbuild.errors import CallRefused
from trtbuild.runtime.memory import dlpack
from trtbuild.runtime.memory.device_memory import LEGACY_STREAM, Memory
from trtbuild.runtime.memory.dtypes import ARRAY_TYPES, element_of_typestr


class DeviceArray:
    """An array in the memory of one GPU.

    `dtype` is torch's name, such as ``float32``. `strides` count elements, and None means row-major. CuPy, Numba, JAX and
    PyTorch can use the array without a copy, by DLPack or the CUDA array interface.
    """

    __slots__ = ("__weakref__", "address", "dtype", "memory", "owner", "shape", "stream", "strides")

    def __init__(
        self,
        memory: Memory,
        address: int,
        shape: tuple[int, ...],
        dtype: str,
        *,
        owner: object,
        stream: int | None,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        self.memory = memory
        self.address = address
        self.shape = shape
        self.dtype = ARRAY_TYPES[dtype].name  # the same string object in all arrays, which makes comparisons fast
        self.owner = owner
        self.stream = stream
        self.strides = None if strides is None or _is_row_major(shape, strides) else strides

    # Torch tensors have these two methods, too.

    def data_ptr(self) -> int:
        return self.address

    def is_contiguous(self) -> bool:
        return self.strides is None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of the whole array in bytes."""
        return math.prod(self.shape) * ARRAY_TYPES[self.dtype].itemsize

    @property
    def device(self) -> str:
        return f"cuda:{self.memory.ordinal}"

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.device})"

    def numpy(self) -> Any:
        """Copy the array to a NumPy array, after its stream has finished. bfloat16, which NumPy lacks, becomes uint16
        with the same bits. The device need not be current."""
        with self.memory.on_device():
            return self.memory.download(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.memory.ordinal

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Create a DLPack capsule of the same memory. The reader's `stream` waits for earlier writes, unless it is
        -1, or the stream of these writes is not known. The device need not be current."""
        if copy:
            raise BufferError("the export does not copy the array: leave out copy=True")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the array is on {self.device}")
        if stream != -1 and self.stream is not None:
            with self.memory.on_device():
                # In DLPack, None means the legacy default stream.
                self.memory.wait(reader=LEGACY_STREAM if stream is None else stream, writer=self.stream)
        versioned = max_version is not None and max_version[0] >= 1
        return dlpack.create_capsule(
            self.address,
            self.shape,
            self.strides,
            self.dtype,
            self.__dlpack_device__(),
            self,
            versioned=versioned,
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        element = ARRAY_TYPES[self.dtype]
        if element.typestr is None:
            raise AttributeError(f"the CUDA array interface has no {self.dtype}: use DLPack")
        strides = None
        if self.strides is not None:
            strides = tuple(step * element.itemsize for step in self.strides)
        return {
            "shape": self.shape,
            "typestr": element.typestr,
            "data": (self.address, False),
            "strides": strides,
            "stream": None if self.stream is None else _exchanged_handle(self.stream),
            "version": 3,
        }


def wrap_array(memory: Memory, value: Any, stream: int, name: str) -> DeviceArray:
    """Wrap another library's array. Later work on `stream` may read the result. `name` is for error messages.

    Raises CallRefused, for example for a value that is not an array, is on another device, or has an unsupported element
    type.
    """
    # If `is_neg` is true, the memory of a torch tensor contains the values with the opposite sign.
    if hasattr(value, "is_neg") and value.is_neg():
        raise CallRefused(f"{name} has a negation that PyTorch has not computed yet", hint="pass tensor.resolve_neg()")
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        return _wrap_dlpack(memory, value, stream, name)
    if hasattr(value, "__cuda_array_interface__"):
        return _wrap_interface(memory, value, stream, name)
    if hasattr(value, "__array_interface__") or hasattr(value, "__array__"):
        raise host_memory_error(name, type(value), memory.ordinal)
    raise CallRefused(
        f"{name} is a {type(value).__name__}, not an array",
        hint="pass an array with __dlpack__ or __cuda_array_interface__: of CuPy, Numba, JAX or PyTorch",
    )


def host_memory_error(name: str, kind: type, ordinal: int) -> CallRefused:
    type_name = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    return CallRefused(
        f"{name} is a {type_name} in host memory; the engine runs on cuda:{ordinal}",
        hint=f'copy it there first: tensor.to("cuda:{ordinal}") in PyTorch, cupy.asarray(array) in CuPy',
    )


def wrong_device_error(name: str, device: str, ordinal: int) -> CallRefused:
    return CallRefused(
        f"{name} is on {device}; the engine runs on cuda:{ordinal}",
        hint=f'copy it to cuda:{ordinal}, or load the package with device="{device}"',
    )


def _wrap_dlpack(memory: Memory, value: Any, stream: int, name: str) -> DeviceArray:
    kind, ordinal = value.__dlpack_device__()
    if int(kind) not in (dlpack.CUDA, dlpack.CUDA_MANAGED):
        raise host_memory_error(name, type(value), memory.ordinal)
    if int(kind) == dlpack.CUDA and int(ordinal) != memory.ordinal:
        raise wrong_device_error(name, f"cuda:{int(ordinal)}", memory.ordinal)
    reader = _exchanged_handle(stream)
    try:
        capsule = value.__dlpack__(stream=reader, max_version=(1, 0))
    except TypeError:  # the library supports only DLPack before 1.0
        capsule = value.__dlpack__(stream=reader)
    try:
        tensor = dlpack.consume_capsule(capsule)
    except ValueError as error:
        raise CallRefused(f"{name}: {error}") from error
    return DeviceArray(
        memory, tensor.address, tensor.shape, tensor.dtype, owner=tensor.owner, stream=stream, strides=tensor.strides
    )


def _wrap_interface(memory: Memory, value: Any, stream: int, name: str) -> DeviceArray:
    interface = value.__cuda_array_interface__
    typestr = str(interface["typestr"])
    element = element_of_typestr(typestr)
    if element is None:
        raise CallRefused(f"{name} has elements of type {typestr}", hint=f"use one of {', '.join(ARRAY_TYPES)}")
    if interface.get("mask") is not None:
        raise CallRefused(f"{name} is a masked array", hint="pass an array without a mask")
    shape = tuple(int(size) for size in interface["shape"])
    address = int(interface["data"][0] or 0)
    ordinal = memory.device_of(address) if address and math.prod(shape) else memory.ordinal
    if ordinal is None:
        raise host_memory_error(name, type(value), memory.ordinal)
    if ordinal != memory.ordinal:
        raise wrong_device_error(name, f"cuda:{ordinal}", memory.ordinal)
    writer = interface.get("stream")
    if writer is not None and _exchanged_handle(int(writer)) != _exchanged_handle(stream):
        memory.wait(reader=stream, writer=int(writer))
    strides = interface.get("strides")
    if strides is not None:
        if any(int(step) % element.itemsize for step in strides):
            raise CallRefused(
                f"{name} has strides that are not a multiple of its element size", hint="pass a contiguous array"
            )
        strides = tuple(int(step) // element.itemsize for step in strides)
    return DeviceArray(memory, address, shape, element.name, owner=value, stream=stream, strides=strides)


def _exchanged_handle(stream: int) -> int:
    """Return the handle of a stream in DLPack and in the CUDA array interface (rule 4)."""
    return stream or LEGACY_STREAM


def _is_row_major(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether an array is contiguous. Strides of axes of size 1 do not matter, and an empty array is always contiguous."""
    if 0 in shape:
        return True
    axes = zip(shape, strides, dlpack.row_major(shape), strict=True)
    return all(size == 1 or step == row_major_step for size, step, row_major_step in axes)
