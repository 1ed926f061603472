"""One engine at a time on a GPU: a compiler that times kernels must not be timed beside another.

`tensorrt` chooses among kernels by running them. Beside another build of the same GPU it would choose by what the other one
left over, and the engine would be slower for good. (One process is quicker, too: TensorRT 8.6 takes 8 s and 4 GB to load.)
"""

from __future__ import annotations

from typing import Protocol

from trtbuild.core.planning.graph import Step
from trtbuild.toolchain.libraries.table import FLAVOURS


class _Room(Protocol):
    def has(self, step: Step) -> bool: ...

    def enter(self, step: Step) -> None: ...

    def leave(self, step: Step) -> None: ...


class GpuRoom:
    """As much room as `inner` has, and of the steps that need a GPU, one at a time."""

    def __init__(self, inner: _Room) -> None:
        self._inner = inner
        self._on_gpu: set[str] = set()

    def has(self, step: Step) -> bool:
        """Whether the step may start now."""
        return not (self._on_gpu and _needs_gpu(step)) and self._inner.has(step)

    def enter(self, step: Step) -> None:
        """The step starts."""
        self._inner.enter(step)
        if _needs_gpu(step):
            self._on_gpu.add(step.id)

    def leave(self, step: Step) -> None:
        """The step has ended."""
        self._inner.leave(step)
        self._on_gpu.discard(step.id)


def _needs_gpu(step: Step) -> bool:
    if step.stage != "engine" or step.recipe is None:
        return False
    toolchain = dict(step.recipe.parts)["toolchain"]
    return isinstance(toolchain, list | tuple) and any(
        flavour.needs_gpu and flavour.name == toolchain[0] for flavour in FLAVOURS.values()
    )
