"""Build one engine at a time on each GPU, and choose the GPU of an engine.

The toolchain `tensorrt` measures kernels on the GPU and chooses the fastest. A second build on the same GPU would disturb
the measurements, so TensorRT could choose slower kernels. The second worker process would also need time and memory:
loading TensorRT 8.6 takes 8 s and 4 GB.

Rules
1. A *GPU step* is an engine step whose toolchain needs a GPU. It gets one GPU with the SM of its target. No other step of
   this build gets this GPU at the same time. Steps that are not GPU steps are not limited here.
2. A GPU step gets the idle GPU with the most free memory. So it avoids a GPU that another program uses.
3. While other GPU steps run, a GPU step waits until an idle GPU has enough free memory (`least_gpu_bytes`). While no GPU
   step runs, it starts at once. So the build makes progress, and TensorRT itself reports a lack of memory.
4. If no GPU has this SM, the step starts only when no other GPU step runs. It runs without a chosen GPU, and its worker
   reports the error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.planning.graph import Step
from trtbuild.core.planning.priorities import weights_bytes
from trtbuild.core.planning.resource_limit import ResourceLimit
from trtbuild.toolchain.libraries.devices import device_sms
from trtbuild.toolchain.libraries.gpu_memory import free_gpu_bytes
from trtbuild.toolchain.libraries.table import FLAVOURS

#: Bytes of GPU memory that an engine step needs without weights, and for each byte of weights. These are guesses.
GPU_BASE_BYTES = 1 << 30
GPU_BYTES_PER_WEIGHT_BYTE = 3


class GpuLimit:
    """Allows a step if `inner_limit` allows it. A GPU step must also be allowed by rules 1 to 4.

    `sms` returns the SMs of all GPUs, in the order of their numbers. `free_bytes` returns the free memory of a GPU; None
    if it is not known. Not thread-safe, except `gpu_of`.
    """

    def __init__(
        self,
        inner_limit: ResourceLimit,
        sms: Callable[[], Sequence[int]] = device_sms,
        free_bytes: Callable[[int], int | None] = free_gpu_bytes,
    ) -> None:
        self._inner_limit = inner_limit
        self._sms = sms
        self._free_bytes = free_bytes
        #: Id of a running GPU step → the number of its GPU, or None (rule 4).
        self._gpus: dict[str, int | None] = {}

    def allows(self, step: Step) -> bool:
        return (not _needs_gpu(step) or self._has_gpu_for(step)) and self._inner_limit.allows(step)

    def acquire(self, step: Step) -> None:
        self._inner_limit.acquire(step)
        if _needs_gpu(step):
            self._gpus[step.id] = max(self._idle_gpus(step), key=self._free_bytes_for_choice, default=None)

    def release(self, step: Step) -> None:
        self._inner_limit.release(step)
        self._gpus.pop(step.id, None)

    def gpu_of(self, step: Step) -> int | None:
        """The number of the GPU that was chosen for a running step, or None."""
        return self._gpus.get(step.id)

    def _has_gpu_for(self, step: Step) -> bool:
        if not self._gpus:
            return True
        needed_bytes = least_gpu_bytes(step)
        return any(self._free_bytes_for_choice(gpu) >= needed_bytes for gpu in self._idle_gpus(step))

    def _idle_gpus(self, step: Step) -> list[int]:
        sm = step.job.target.sm if isinstance(step.job, EngineJob) else None
        busy = set(self._gpus.values())
        return [gpu for gpu, gpu_sm in enumerate(self._sms()) if gpu_sm == sm and gpu not in busy]

    def _free_bytes_for_choice(self, gpu: int) -> float:
        free = self._free_bytes(gpu)
        return float("inf") if free is None else free


def least_gpu_bytes(step: Step) -> int:
    """The free bytes of a GPU that are enough to start this engine step while others run on other GPUs (rule 3)."""
    return GPU_BASE_BYTES + GPU_BYTES_PER_WEIGHT_BYTE * weights_bytes(step)


def _needs_gpu(step: Step) -> bool:
    return isinstance(step.job, EngineJob) and FLAVOURS[step.job.target.toolchain].needs_gpu
