"""The memory of tensors while `dataflow` records a call: their layouts, their values, and the bytes of constants."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

#: The largest size of a constant, in bytes. A larger constant raises CannotFollow.
_MAX_CONSTANT_BYTES = 1 << 26

#: The offset of a tensor in its storage, its sizes, strides and dtype. Tensors with the same storage and the same layout
#: have the same value.
Layout = tuple[Any, ...]


class CannotFollow(Exception):
    """A call does something that a flow cannot describe (`dataflow`)."""


@dataclass
class Value:
    """The value of a tensor. `number` identifies it, and `fake` is a tensor without elements, of the same size and type."""

    number: int
    fake: torch.Tensor
    is_constant: bool = False


@dataclass
class Memory:
    """One storage. `values` maps the layout of each tensor in it to the value of the tensor.

    While `keepalive` exists, the storage is not freed, so its address is not used again.
    """

    keepalive: torch.Tensor
    is_allocated_by_call: bool
    values: dict[Layout, Value] = field(default_factory=dict)


def storage_and_layout(tensor: torch.Tensor) -> tuple[int, Layout]:
    """The address of a tensor's storage, and the tensor's layout there. Raises CannotFollow for a sparse tensor, for a
    subclass of Tensor except Parameter, and for a view that conjugates or negates."""
    if tensor.layout is not torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise CannotFollow(f"a {type(tensor).__name__} of layout {tensor.layout}")
    if tensor.is_conj() or tensor.is_neg():
        raise CannotFollow("a view that conjugates or negates")
    layout = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
    return tensor.untyped_storage()._cdata, layout


def memory_like(fake: torch.Tensor) -> torch.Tensor:
    """Make an uninitialized CPU tensor with the shape, strides and dtype of `fake`. Nothing writes to it, so it takes
    little memory."""
    with _disable_current_modes():
        return torch.empty_strided(tuple(fake.shape), fake.stride(), dtype=fake.dtype)


def constant_key(tensor: torch.Tensor) -> tuple[Any, ...]:
    """A constant's dtype, shape and the SHA-256 of its bytes. Raises CannotFollow for a large constant."""
    if tensor.numel() * tensor.element_size() > _MAX_CONSTANT_BYTES:
        raise CannotFollow("a large constant")
    with _disable_current_modes():
        value = tensor.detach().cpu().contiguous()
        raw = _original_numpy(value.reshape(-1).view(torch.uint8)).tobytes() if value.numel() else b""
    return str(tensor.dtype), tuple(tensor.shape), hashlib.sha256(raw).digest()


# `dataflow` replaces this method while it records a call
_original_numpy = torch.Tensor.numpy
