"""Read and create DLPack capsules through ctypes, without torch or compiled code.

A capsule passes an array from one library to another. dlpack.h 1.0 defines the structures
(https://dmlc.github.io/dlpack/latest/c_api.html). The protocol is part of the Python array API (``__dlpack__``).

Rules
1. A capsule is consumed once. The consumer renames it to ``used_…``, and calls its deleter once, when the last user of the
   memory is freed. `_Owner` does not call it after Python has begun to end.
2. A capsule that is created here keeps the array alive until its consumer calls the deleter. If a capsule has no consumer,
   its destructor releases the array.
3. When a capsule's destructor runs, no references to the capsule are left. So the destructor uses addresses, never the
   Python object.
4. A consumer may free memory after Python has ended, for example when a static C++ object is destroyed. So functions that C
   code may then call, and data that it may read, are never freed. At exit, the deleters of live capsules are replaced by a
   function that does not need Python.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trtbuild.runtime.memory.dtypes import ARRAY_TYPES, element_of_dlpack

#: Members of DLDeviceType.
CPU, CUDA, CUDA_MANAGED = 1, 2, 13


class _Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _ManagedTensor(ctypes.Structure):  # DLManagedTensor
    _fields_ = [("tensor", _Tensor), ("manager", ctypes.c_void_p), ("deleter", _Deleter)]


class _VersionedTensor(ctypes.Structure):  # DLManagedTensorVersioned
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


#: The name of an unused capsule → its structure, and the name of a used capsule.
_CAPSULE_KINDS: dict[bytes, tuple[type[ctypes.Structure], bytes]] = {
    b"dltensor_versioned": (_VersionedTensor, b"used_dltensor_versioned"),
    b"dltensor": (_ManagedTensor, b"used_dltensor"),
}


@dataclass(frozen=True)
class CapsuleTensor:
    """The tensor of a capsule. `strides` count elements, and None means row-major. The memory is freed with `owner`."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    device_type: int
    device_id: int
    owner: object


class _Owner:
    """Calls a capsule's deleter when the memory is no longer used."""

    def __init__(self, address: int, deleter: Any) -> None:
        self._address = address
        self._deleter = deleter

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        deleter, self._deleter = self._deleter, None
        if deleter and not is_finalizing():  # at exit the deleter's code may be unloaded
            deleter(self._address)


def consume_capsule(capsule: object) -> CapsuleTensor:
    """Consume `capsule`, and return its tensor.

    Raises ValueError if this is not an unused DLPack capsule, or has another major version than 1, or an unsupported
    element type.
    """
    for name, (structure, used) in _CAPSULE_KINDS.items():
        if not _object_api.PyCapsule_IsValid(ctypes.py_object(capsule), name):
            continue
        address = _object_api.PyCapsule_GetPointer(ctypes.py_object(capsule), name)
        managed: Any = structure.from_address(address)
        if structure is _VersionedTensor and managed.major != 1:
            raise ValueError(
                f"a DLPack capsule of version {managed.major}.{managed.minor}, but only version 1 can be read"
            )
        tensor = managed.tensor
        element = element_of_dlpack(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes)
        if element is None:
            raise ValueError(f"DLPack type {tensor.dtype.code}, {tensor.dtype.bits} bits, {tensor.dtype.lanes} lanes")
        _object_api.PyCapsule_SetName(ctypes.py_object(capsule), used)
        return CapsuleTensor(
            address=(tensor.data or 0) + tensor.byte_offset,
            shape=tuple(tensor.shape[: tensor.ndim]),
            strides=tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None,
            dtype=element.name,
            device_type=tensor.device.device_type,
            device_id=tensor.device.device_id,
            owner=_Owner(address, managed.deleter),
        )
    raise ValueError("not a DLPack capsule, or a used one")


#: Live capsules that were created here: address of the managed tensor → the objects that must not be freed before it.
_LIVE_CAPSULES: dict[int, tuple[Any, ...]] = {}


def create_capsule(
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    dtype: str,
    device: tuple[int, int],
    owner: object,
    *,
    versioned: bool,
) -> object:
    """Create a capsule for the memory of `owner`. `device` is DLPack's device type and number. `strides` are those of
    `CapsuleTensor`."""
    element = ARRAY_TYPES[dtype]
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    steps = (ctypes.c_int64 * len(shape))(*(row_major(shape) if strides is None else strides))
    managed: Any = _VersionedTensor() if versioned else _ManagedTensor()
    if versioned:
        managed.major, managed.minor, managed.flags = 1, 0, 0
    tensor = managed.tensor
    tensor.data = address or None
    tensor.device = _Device(*device)
    tensor.ndim = len(shape)
    tensor.dtype = _DataType(element.dlpack, element.bits, 1)
    tensor.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64))
    tensor.byte_offset = 0
    managed.deleter = _deleter
    managed_address = ctypes.addressof(managed)
    _LIVE_CAPSULES[managed_address] = (managed, sizes, steps, owner)
    name = _VERSIONED_CAPSULE_NAME if versioned else _CAPSULE_NAME
    return _object_api.PyCapsule_New(managed_address, name, _destructor)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous array."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _release_capsule(address: int) -> None:
    _LIVE_CAPSULES.pop(address, None)


def _release_unused_capsule(capsule: int, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    if is_finalizing():
        return
    for name in _CAPSULE_KINDS:
        if _address_api.PyCapsule_IsValid(capsule, name):  # the capsule was not consumed
            _LIVE_CAPSULES.pop(_address_api.PyCapsule_GetPointer(capsule, name), None)


_deleter, _destructor = _Deleter(_release_capsule), _Deleter(_release_unused_capsule)

#: PyCapsule_New does not copy these names of unused capsules, so these objects must never be freed.
_CAPSULE_NAME, _VERSIONED_CAPSULE_NAME = b"dltensor", b"dltensor_versioned"


def _python_api(handle: Any) -> Any:
    """Return Python's capsule functions. `handle` is the ctypes type in which a capsule is passed: ``py_object`` for the
    object, or ``c_void_p`` for its address."""
    # A new PyDLL has separate function objects. Each API needs its own, because argtypes are set on these objects.
    api = ctypes.PyDLL(None, handle=ctypes.pythonapi._handle)
    api.PyCapsule_IsValid.argtypes = (handle, ctypes.c_char_p)
    api.PyCapsule_IsValid.restype = ctypes.c_int
    api.PyCapsule_GetPointer.argtypes = (handle, ctypes.c_char_p)
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_SetName.argtypes = (handle, ctypes.c_char_p)
    api.PyCapsule_SetName.restype = ctypes.c_int
    api.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    api.PyCapsule_New.restype = ctypes.py_object
    return api


_object_api = _python_api(ctypes.py_object)
_address_api = _python_api(ctypes.c_void_p)


def _replace_deleters() -> None:
    harmless = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, _Deleter)  # ignores its argument
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(harmless))
    for managed, *_ in list(_LIVE_CAPSULES.values()):
        managed.deleter = harmless


for _immortal in (
    _deleter,
    _destructor,
    _LIVE_CAPSULES,
    _CAPSULE_NAME,
    _VERSIONED_CAPSULE_NAME,
    *(used for _, used in _CAPSULE_KINDS.values()),
):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_immortal))  # rule 4
atexit.register(_replace_deleters)
