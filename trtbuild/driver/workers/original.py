"""Time the original module with eager PyTorch and with torch.compile, in a worker process.

The module is created as in a trace, and moved to a device. Its weights file is not read, because times do not depend on
values. The process keeps the module for later jobs. `trtbuild.driver.running.originals` sends the jobs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trtbuild.core.values.codec import decode
from trtbuild.driver.workers.stopwatch import LocalContender, Turn
from trtbuild.stages.trace.job import TraceJob

Job = Mapping[str, Any]


def handler(project: Path) -> Callable[[Job], dict[str, Any]]:
    """Return the function that handles the jobs of a worker of kind ``original``.

    The first job contains `trace` and `device`, and creates the module. Its reply is `_OriginalModule.about`. Each later
    job contains a `runner` (``eager`` or ``torch.compile``) and one of:

    * `shapes`: make the first call with these shapes. ``first_s`` of the reply is its duration in seconds.
    * `warm_up`: make calls for this number of seconds.
    * `turn`: time the calls of one `Turn`. ``times`` of the reply are their durations in seconds.

    If a call fails, ``dropped`` of the reply has the type and the first line of the error.
    """
    modules: list[_OriginalModule] = []

    def handle(job: Job) -> dict[str, Any]:
        if "trace" in job:
            modules[:] = [_OriginalModule(decode(TraceJob, job["trace"]), job["device"], project)]
            return modules[0].about()
        import torch

        try:
            with torch.no_grad():
                return modules[0].answer(job)
        except Exception as error:  # user code can raise anything, and torch.compile needs a compiler
            return {"dropped": f"{type(error).__name__}: {error}".splitlines()[0]}

    return handle


class _OriginalModule:
    """The original module, and its function for each runner."""

    def __init__(self, trace: TraceJob, device: str, project: Path) -> None:
        from trtbuild.stages.trace.examples import seed_everything
        from trtbuild.stages.trace.sources.reading import read
        from trtbuild.stages.trace.user_code.frames import Frames
        from trtbuild.stages.trace.user_code.owners import FileOwners

        sys.path[:0] = [str(project / root) for root in trace.source.roots]
        seed_everything()
        self._trace = trace
        self._device = device
        module: Any = read(trace, project, Frames(FileOwners(project), project))
        self._module = module.to(device)
        self._functions: dict[str, Callable[..., object]] = {}
        self._contenders: dict[str, LocalContender] = {}

    def about(self) -> dict[str, Any]:
        import torch

        name = torch.cuda.get_device_name(self._device) if self._is_on_gpu else None
        return {"torch": torch.__version__, "device_name": name}

    def answer(self, job: Job) -> dict[str, Any]:
        if "shapes" in job:
            self._contenders[job["runner"]] = self._new_contender(job["runner"], job["shapes"])
        contender = self._contenders[job["runner"]]
        if "shapes" in job:
            return {"first_s": contender.time_first_call()}
        if "warm_up" in job:
            contender.warm_up(job["warm_up"])
            return {}
        return {"times": contender.time_turn(Turn(**job["turn"]))}

    @property
    def _is_on_gpu(self) -> bool:
        return str(self._device).startswith("cuda")

    def _new_contender(self, runner: str, shapes: Sequence[Sequence[int]]) -> LocalContender:
        import torch

        from trtbuild.stages.trace.examples import call_arguments, example_tensors

        if runner not in self._functions:
            self._functions[runner] = torch.compile(self._module) if runner == "torch.compile" else self._module
        function = self._functions[runner]
        values = [tensor.to(self._device) for tensor in example_tensors(self._trace.inputs, shapes)]
        args, kwargs = call_arguments(self._trace.inputs, values)
        return LocalContender(
            lambda: function(*args, **kwargs), torch.cuda.synchronize if self._is_on_gpu else _wait_for_cpu
        )


def _wait_for_cpu() -> None:
    """Do nothing, because a call on the CPU has finished when it returns."""
