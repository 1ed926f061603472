"""The original module, timed: eager PyTorch, and torch.compile. Runs in a child process, as all code of users does.

The module is made as the trace makes it, on the device that is asked for; a weights file is not read, because times do not
depend on values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trtbuild.driver.running.stopwatch import Budget, measure

Job = Mapping[str, Any]


def handler(project: Path) -> Callable[[Job], dict[str, Any]]:
    """What a worker of kind ``original`` does with a job: ``{"outputs", "runs", "refused"}``."""

    def handle(job: Job) -> dict[str, Any]:
        import torch

        from trtbuild.stages.trace.examples import call_arguments, seed_everything, tensors
        from trtbuild.stages.trace.frames import Frames
        from trtbuild.stages.trace.job import TraceJob
        from trtbuild.stages.trace.places import Places
        from trtbuild.stages.trace.sources import load

        trace = TraceJob.from_json(job["trace"])
        sys.path[:0] = [str(project / root) for root in trace.source.roots]
        seed_everything()
        module = load(trace, project, Frames(Places(), project)).to(job["device"])
        budget = Budget(**job["budget"])
        on_gpu = str(job["device"]).startswith("cuda")
        wait = torch.cuda.synchronize if on_gpu else _nothing
        runs, refused = [], {}
        for runner in job["runners"]:
            with torch.no_grad():
                try:
                    called = torch.compile(module) if runner == "torch.compile" else module
                    for number, shapes in enumerate(job["points"]):
                        values = [tensor.to(job["device"]) for tensor in tensors(trace.inputs, shapes)]
                        args, kwargs = call_arguments(trace.inputs, values)
                        timed = measure(lambda: called(*args, **kwargs), wait, budget)  # noqa: B023
                        runs.append({"runner": runner, "point": number, **timed})
                except Exception as error:  # of the user's code, or of a compiler that is not there
                    refused[runner] = f"{type(error).__name__}: {error}".splitlines()[0]
        name = torch.cuda.get_device_name(job["device"]) if on_gpu else None
        return {"outputs": {}, "runs": runs, "refused": refused, "torch": torch.__version__, "device_name": name}

    return handle


def _nothing() -> None:
    """The CPU is done when a call returns."""
