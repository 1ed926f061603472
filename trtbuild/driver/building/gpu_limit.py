"""A limit of one engine build at a time on a GPU.

`tensorrt` measures kernels on the GPU and chooses the fastest. Another build on the same GPU would disturb the
measurements, and the choice of slower kernels would stay in the engine. A second worker process would also need time and
memory: loading TensorRT 8.6 takes 8 s and 4 GB.
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
    """Allows a step if the limit `inner_limit` allows it, but at most one step at a time that needs a GPU."""

    def __init__(self, inner_limit: _ResourceLimit) -> None:
        self._inner_limit = inner_limit
        self._gpu_steps: set[str] = set()

    def allows(self, step: Step) -> bool:
        """Whether the step may start now."""
        return not (self._gpu_steps and _needs_gpu(step)) and self._inner_limit.allows(step)

    def acquire(self, step: Step) -> None:
        """Note that the step starts."""
        self._inner_limit.acquire(step)
        if _needs_gpu(step):
            self._gpu_steps.add(step.id)

    def release(self, step: Step) -> None:
        """Note that the step has ended."""
        self._inner_limit.release(step)
        self._gpu_steps.discard(step.id)


def _needs_gpu(step: Step) -> bool:
    if step.stage != "engine" or step.recipe is None:
        return False
    toolchain = dict(step.recipe.parts)["toolchain"]
    return isinstance(toolchain, list | tuple) and any(
        flavour.needs_gpu and flavour.name == toolchain[0] for flavour in FLAVOURS.values()
    )
