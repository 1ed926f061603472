"""Operations on torch tensors in host memory, for the reference program."""

from __future__ import annotations

from typing import Any

from trtbuild.errors import CallRefused
from trtbuild.runtime.calls.torch_part import require_torch
from trtbuild.runtime.memory import dlpack, tensor_kinds
from trtbuild.runtime.memory.foreign import has_negative_strides


class HostArrayOperations:
    """Implements `trtbuild.runtime.calls.arguments.ArrayOperations` for torch tensors on the CPU.

    Arrays of other libraries are read by DLPack, without a copy. Only NumPy arrays that DLPack refuses are copied, for
    example read-only and reversed arrays, and arrays with another byte order."""

    requires_contiguous = False  # no engine reads the tensors

    def __init__(self) -> None:
        self._torch: Any = require_torch("the reference program runs in PyTorch")
        self.device = self._torch.device("cpu")
        self.own_types = frozenset({self._torch.Tensor, self._torch.nn.Parameter})

    def needs_materializing(self, array: Any) -> bool:
        return tensor_kinds.needs_materializing(array)

    def materialize(self, array: Any, name: str) -> Any:
        return tensor_kinds.materialize(array, name)

    def dtype(self, name: str) -> object:
        return getattr(self._torch, name)

    def contiguous_copy(self, array: Any, stream: int) -> Any:
        return array.detach().clone(memory_format=self._torch.contiguous_format)

    def adopt(self, value: object, name: str, stream: int) -> Any:
        torch = self._torch
        if isinstance(value, torch.Tensor):
            return self.materialize(value, name)
        if hasattr(value, "__dlpack__"):
            if hasattr(value, "mask"):
                raise CallRefused(f"{name} is a masked array", hint="pass an array without a mask")
            if hasattr(value, "__dlpack_device__") and int(value.__dlpack_device__()[0]) == dlpack.CUDA:
                # without CUDA, torch.from_dlpack raises an AssertionError for such an array
                raise CallRefused(
                    f"{name} is on cuda:{int(value.__dlpack_device__()[1])}, but the model runs on {self.device}",
                    hint="copy it to main memory first: cupy.asnumpy(array) in CuPy",
                )
            try:
                if has_negative_strides(value):
                    raise BufferError("it has negative strides")
                return torch.from_dlpack(value)
            except (BufferError, RuntimeError, TypeError, ValueError) as error:
                return self._copy_numpy_array(value, name, error)
        kind = "None" if value is None else f"a {type(value).__name__}"
        raise CallRefused(f"{name} is {kind}, but must be a tensor", hint="pass a torch tensor or a NumPy array")

    def _copy_numpy_array(self, value: Any, name: str, error: Exception) -> Any:
        """Copy a NumPy array that DLPack refused with `error`. Raises CallRefused for other values."""
        try:
            import numpy

            return self._torch.from_numpy(numpy.array(value, dtype=value.dtype.newbyteorder("=")))
        except (ImportError, AttributeError, RuntimeError, TypeError, ValueError):
            raise CallRefused(f"{name} cannot be read by DLPack: {error}", hint="pass a torch tensor") from error
