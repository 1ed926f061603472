"""Torch tensors in host memory, for the reference program."""

from __future__ import annotations

from typing import Any

from trtbuild.errors import CallRefused
from trtbuild.runtime.calls.torch_part import require_torch
from trtbuild.runtime.memory import tensor_kinds


class HostArrays:
    """Torch tensors on the CPU. Other CPU arrays with DLPack (NumPy) are wrapped without a copy."""

    contiguous = False

    def __init__(self) -> None:
        self._torch: Any = require_torch("the reference program runs in PyTorch")
        self.device = self._torch.device("cpu")
        self.own = frozenset({self._torch.Tensor, self._torch.nn.Parameter})

    def is_odd(self, array: Any) -> bool:
        return tensor_kinds.is_odd(array)

    def plain(self, array: Any, name: str) -> Any:
        return tensor_kinds.plain(array, name)

    def dtype(self, name: str) -> object:
        return getattr(self._torch, name)

    def packed(self, array: Any, stream: int) -> Any:
        return array.clone(memory_format=self._torch.contiguous_format)

    def adopt(self, value: object, name: str, stream: int) -> Any:
        torch = self._torch
        if isinstance(value, torch.Tensor):
            return self.plain(value, name)
        if hasattr(value, "__dlpack__"):
            if hasattr(value, "mask"):
                raise CallRefused(f"{name} is a masked array", hint="pass an array without a mask")
            try:
                return torch.from_dlpack(value)
            except (BufferError, RuntimeError, TypeError, ValueError) as error:
                return self._copied(value, name, error)
        kind = "None" if value is None else f"a {type(value).__name__}"
        raise CallRefused(f"{name} is {kind}, but must be a tensor", hint="pass a torch tensor or a NumPy array")

    def _copied(self, value: Any, name: str, error: Exception) -> Any:
        """Copy a NumPy array that is read-only or has another byte order."""
        try:
            import numpy

            return self._torch.from_numpy(numpy.array(value, dtype=value.dtype.newbyteorder("=")))
        except (ImportError, AttributeError, RuntimeError, TypeError, ValueError):
            raise CallRefused(f"{name} cannot be read by DLPack: {error}", hint="pass a torch tensor") from error
