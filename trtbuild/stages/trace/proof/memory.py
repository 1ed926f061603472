"""Describe the memory of tensors while a call is recorded (`dataflow`): their places, their values, and the bytes of
constants."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

#: Constants larger than this, in bytes, are neither computed nor followed.
_LARGEST_CONSTANT = 1 << 26

#: Storage, offset, sizes, strides and dtype: tensors with the same place have the same value.
Place = tuple[Any, ...]


class CannotFollow(Exception):
    """A call does something that a flow cannot describe."""


@dataclass
class Value:
    """A value's number, and a fake tensor of its size and type. `constant`: its elements are known."""

    number: int
    fake: torch.Tensor
    constant: bool = False


@dataclass
class Memory:
    """One storage. `own`: the call allocated it. `kept` prevents that the storage is freed and its address used again."""

    kept: torch.Tensor
    own: bool
    values: dict[Place, Value] = field(default_factory=dict)


def where(tensor: torch.Tensor) -> tuple[int, Place]:
    """The storage of a tensor, and its place there. Raises CannotFollow for a tensor that is not plain."""
    if tensor.layout is not torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise CannotFollow(f"a {type(tensor).__name__} of layout {tensor.layout}")
    if tensor.is_conj() or tensor.is_neg():
        raise CannotFollow("a view that conjugates or negates")
    place = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
    return tensor.untyped_storage()._cdata, place


def memory_like(fake: torch.Tensor) -> torch.Tensor:
    """Make a tensor of the size, strides and type of `fake`. Its memory is not written, so most pages are never
    mapped."""
    with _disable_current_modes():
        return torch.empty_strided(tuple(fake.shape), fake.stride(), dtype=fake.dtype)


def digest(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The key of a constant: its dtype, shape and bytes. Raises CannotFollow for a large one."""
    if tensor.numel() * tensor.element_size() > _LARGEST_CONSTANT:
        raise CannotFollow("a large constant")
    with _disable_current_modes():
        value = tensor.detach().cpu().contiguous()
        raw = _numpy(value.reshape(-1).view(torch.uint8)).tobytes() if value.numel() else b""
    return str(tensor.dtype), tuple(tensor.shape), hashlib.sha256(raw).digest()


_numpy = torch.Tensor.numpy
