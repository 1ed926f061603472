"""Torch tensors in host memory, as the reference program takes them."""

from __future__ import annotations

from typing import Any

from trtbuild.errors import CallRefused
from trtbuild.runtime.torch_part import require_torch


class HostArrays:
    """Torch tensors on the CPU. What speaks DLPack and lies there (a NumPy array) is taken without a copy."""

    contiguous = False

    def __init__(self) -> None:
        self._torch: Any = require_torch("the reference program runs in PyTorch")
        self.device = self._torch.device("cpu")
        self.own = frozenset({self._torch.Tensor, self._torch.nn.Parameter})

    def dtype(self, name: str) -> object:
        return getattr(self._torch, name)

    def adopt(self, value: object, name: str, stream: int) -> Any:
        torch = self._torch
        if isinstance(value, torch.Tensor):
            return value
        if hasattr(value, "__dlpack__"):
            try:
                return torch.from_dlpack(value)
            except (BufferError, RuntimeError, TypeError, ValueError):
                if hasattr(value, "__array__"):  # a NumPy array that is read-only, or of bytes in another order
                    import numpy

                    return torch.from_numpy(numpy.array(value, dtype=value.dtype.newbyteorder("=")))  # type: ignore[attr-defined]
                raise
        kind = "None" if value is None else f"a {type(value).__name__}"
        raise CallRefused(f"{name} is {kind}, and must be a tensor", hint="give a torch tensor or a NumPy array")
