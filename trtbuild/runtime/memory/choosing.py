"""Choose the allocator of device memory: torch or the CUDA driver."""

from __future__ import annotations

import sys

from trtbuild.errors import EnvironmentFault
from trtbuild.runtime.memory.device_memory import Memory


def choose_memory(ordinal: int) -> Memory:
    """Return a `TorchMemory` if torch can use a GPU here, otherwise a `CudaMemory`.

    Raises EnvironmentFault if torch cannot use a GPU and cuda-bindings is not installed, or if there is no GPU `ordinal`.
    """
    if _torch_has_cuda():
        from trtbuild.runtime.memory.torch_memory import TorchMemory

        return TorchMemory(ordinal)
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise EnvironmentFault(
            f"engines need device memory, but torch cannot use a GPU here, and cuda-bindings is not installed ({error})",
            hint="pip install 'cuda-bindings>=12.6', or torch for CUDA",
        ) from error
    from trtbuild.runtime.memory.cuda_memory import CudaMemory

    return CudaMemory(driver, ordinal)


def _torch_has_cuda() -> bool:
    if sys.modules.get("torch", ...) is None:  # the import of torch is blocked
        return False
    try:
        import torch
    except (ImportError, OSError):
        return False
    return bool(torch.cuda.is_available())
