"""A limit of one engine build at a time on a GPU.

`tensorrt` runs kernels and chooses the fastest. Another build on the same GPU would disturb these measurements, and the
engine would stay slower. (A second worker process would also need time and memory: 8 s and 4 GB to load TensorRT 8.6.)
"""

from __future__ import annotations

from typing import Protocol

from trtbuild.core.planning.graph import Step
from trtbuild.toolchain.libraries.table import FLAVOURS


class _ResourceLimit(Protocol):
    def allows(self, step: Step) -> bool: ...

    def acquire(self, step: Step) -> None: ...

    def release(self, step: Step) -> None: ...


class GpuLimit:
    """Allows a step if the limit `inner` allows it, but at most one step at a time that needs a GPU."""

    def __init__(self, inner: _ResourceLimit) -> None:
        self._inner = inner
        self._on_gpu: set[str] = set()

    def allows(self, step: Step) -> bool:
        """Whether the step may start now."""
        return not (self._on_gpu and _needs_gpu(step)) and self._inner.allows(step)

    def acquire(self, step: Step) -> None:
        """Note that the step starts."""
        self._inner.acquire(step)
        if _needs_gpu(step):
            self._on_gpu.add(step.id)

    def release(self, step: Step) -> None:
        """Note that the step has ended."""
        self._inner.release(step)
        self._on_gpu.discard(step.id)


def _needs_gpu(step: Step) -> bool:
    if step.stage != "engine" or step.recipe is None:
        return False
    toolchain = dict(step.recipe.parts)["toolchain"]
    return isinstance(toolchain, list | tuple) and any(
        flavour.needs_gpu and flavour.name == toolchain[0] for flavour in FLAVOURS.values()
    )
