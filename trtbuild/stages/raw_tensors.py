"""Convert tensors to bytes and back. The bytes are little-endian and row-major, as in blobs and safetensors files."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor, which may be on any device and have any strides."""
    value = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""


def raw_tensor(name: str, tensor: torch.Tensor) -> tuple[str, str, tuple[int, ...], bytes]:
    """(name, dtype, shape, bytes) of a tensor, for `trtbuild.core.values.safetensors.to_bytes`."""
    return name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), raw_bytes(tensor)


def tensor_of(dtype: str, shape: Sequence[int], raw: bytes | bytearray) -> torch.Tensor:
    """The tensor with the bytes `raw`. `dtype` is a name like ``float32``.

    Raises AttributeError for an unknown name, and ValueError or RuntimeError if the bytes do not fit the dtype and shape.
    """
    kind: torch.dtype = getattr(torch, dtype)
    flat = torch.frombuffer(bytearray(raw), dtype=kind) if raw else torch.empty(0, dtype=kind)
    return flat.reshape(tuple(shape))
