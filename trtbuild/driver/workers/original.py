"""The original module, timed: eager PyTorch, and torch.compile. Runs in a child process, as all code of users does.

The module is made as the trace makes it, on the device that is asked for; a weights file is not read, because times do not
depend on values. The process keeps it from one job to the next (`trtbuild.driver.running.originals` gives them).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trtbuild.driver.workers.stopwatch import Timed, Turn
from trtbuild.stages.trace.job import TraceJob

Job = Mapping[str, Any]


def handler(project: Path) -> Callable[[Job], dict[str, Any]]:
    """What a worker of kind ``original`` does with a job. The first one says `trace` and `device`; the others a `runner`,
    and what is asked of it: `shapes` for its ``first_s`` there, `warm_up`, or a `turn` for its ``times``. What a runner
    cannot do is ``dropped``."""
    made: list[_Original] = []

    def handle(job: Job) -> dict[str, Any]:
        if "trace" in job:
            made[:] = [_Original(TraceJob.from_json(job["trace"]), job["device"], project)]
            return made[0].about()
        import torch

        try:
            with torch.no_grad():
                return made[0].answer(job)
        except Exception as error:  # of the user's code, or of a compiler that is not there
            return {"dropped": f"{type(error).__name__}: {error}".splitlines()[0]}

    return handle


class _Original:
    """The module, and how it is called by each runner."""

    def __init__(self, trace: TraceJob, device: str, project: Path) -> None:
        from trtbuild.stages.trace.examples import seed_everything
        from trtbuild.stages.trace.sources.loading import load
        from trtbuild.stages.trace.user_code.frames import Frames
        from trtbuild.stages.trace.user_code.places import Places

        sys.path[:0] = [str(project / root) for root in trace.source.roots]
        seed_everything()
        self._trace = trace
        self._device = device
        self._module = load(trace, project, Frames(Places(), project)).to(device)
        self._called: dict[str, Callable[..., object]] = {}
        self._timed: dict[str, Timed] = {}

    def about(self) -> dict[str, Any]:
        import torch

        name = torch.cuda.get_device_name(self._device) if self._is_on_gpu else None
        return {"torch": torch.__version__, "device_name": name}

    def answer(self, job: Job) -> dict[str, Any]:
        if "shapes" in job:
            self._timed[job["runner"]] = self._call(job["runner"], job["shapes"])
        timed = self._timed[job["runner"]]
        if "shapes" in job:
            return {"first_s": timed.first()}
        if "warm_up" in job:
            timed.warm_up(job["warm_up"])
            return {}
        return {"times": timed.times(Turn(**job["turn"]))}

    @property
    def _is_on_gpu(self) -> bool:
        return str(self._device).startswith("cuda")

    def _call(self, runner: str, shapes: Sequence[Sequence[int]]) -> Timed:
        import torch

        from trtbuild.stages.trace.examples import call_arguments, tensors

        if runner not in self._called:
            self._called[runner] = torch.compile(self._module) if runner == "torch.compile" else self._module
        called = self._called[runner]
        values = [tensor.to(self._device) for tensor in tensors(self._trace.inputs, shapes)]
        args, kwargs = call_arguments(self._trace.inputs, values)
        return Timed(lambda: called(*args, **kwargs), torch.cuda.synchronize if self._is_on_gpu else _nothing)


def _nothing() -> None:
    """The CPU is done when a call returns."""
