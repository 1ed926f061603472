"""Tensors while a call is followed (`dataflow`): where each lies, what is known of it there, and the bytes of constants."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

#: Constants larger than this, in bytes, are not computed, and not followed where they come from the model.
_LARGEST_CONSTANT = 1 << 26

#: Storage, offset, sizes, strides and dtype: two tensors with one place are one value.
Place = tuple[Any, ...]


class CannotFollow(Exception):
    """A call does something that its flow could not stand for."""


@dataclass
class Value:
    """A value's number, and the fake tensor that tells what operators make of its size and type. `constant`: its numbers
    are there."""

    number: int
    fake: torch.Tensor
    constant: bool = False


@dataclass
class Memory:
    """One storage. `own`: the call made it. It is kept, because its address is its own only while it lives."""

    kept: torch.Tensor
    own: bool
    values: dict[Place, Value] = field(default_factory=dict)


def where(tensor: torch.Tensor) -> tuple[int, Place]:
    """The storage that a tensor lies in, and its place there. Raises CannotFollow for what is no plain tensor."""
    if tensor.layout is not torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise CannotFollow(f"a {type(tensor).__name__} of layout {tensor.layout}")
    if tensor.is_conj() or tensor.is_neg():
        raise CannotFollow("a view that conjugates or negates")
    place = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
    return tensor.untyped_storage()._cdata, place


def memory_like(fake: torch.Tensor) -> torch.Tensor:
    """A tensor of the size, strides and type of `fake`, whose memory is not touched (so most of it is never there)."""
    with _disable_current_modes():
        return torch.empty_strided(tuple(fake.shape), fake.stride(), dtype=fake.dtype)


def digest(tensor: torch.Tensor) -> tuple[Any, ...]:
    """A constant by its dtype, shape and bytes. Raises CannotFollow for a large one."""
    if tensor.numel() * tensor.element_size() > _LARGEST_CONSTANT:
        raise CannotFollow("a large constant")
    with _disable_current_modes():
        value = tensor.detach().cpu().contiguous()
        raw = _numpy(value.reshape(-1).view(torch.uint8)).tobytes() if value.numel() else b""
    return str(tensor.dtype), tuple(tensor.shape), hashlib.sha256(raw).digest()


_numpy = torch.Tensor.numpy
