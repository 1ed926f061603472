"""Time the original module, from which a package was built, in a separate process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trtbuild.core.values.codec import encode
from trtbuild.driver.project import wiring
from trtbuild.driver.workers.stopwatch import Dropped, Turn
from trtbuild.driver.workers.worker_process import Worker
from trtbuild.errors import TrtbuildError
from trtbuild.stages.trace.job import TraceJob


class OriginalModule:
    """The process that times the original module, as a context manager.

    `failure_reason` is the reason why the process cannot time the module, or None. `about` has the version of torch and the
    name of the device.
    """

    def __init__(self, project: Path, job: TraceJob, device: str) -> None:
        self.failure_reason: str | None = None
        self.about: Mapping[str, Any] = {}
        self._worker = Worker("original", wiring.store_root(project), project)
        try:
            self.about = self._worker.call({"trace": encode(job), "device": device})
        except TrtbuildError as error:
            self.failure_reason = error.text
        except BaseException:
            self._worker.kill()
            raise

    def __enter__(self) -> OriginalModule:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._worker.kill()
        self._worker.end()

    def contender(self, name: str, shapes: Sequence[Sequence[int]]) -> OriginalContender:
        """Return the contender that times these shapes with ``eager`` or ``torch.compile`` (`name`)."""
        return OriginalContender(self, name, shapes)

    def ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Return the process's answer to a job. Raises Dropped if the job or the process has failed."""
        if self.failure_reason is None:
            try:
                reply = self._worker.call(job)
            except TrtbuildError as error:  # the process died, so it cannot do later jobs
                self.failure_reason = error.text
            else:
                if "dropped" in reply:
                    raise Dropped(reply["dropped"])
                return reply
        raise Dropped(self.failure_reason)


class OriginalContender:
    """A `trtbuild.driver.workers.stopwatch.Contender`: a runner of the original module, for fixed shapes."""

    def __init__(self, original_module: OriginalModule, runner: str, shapes: Sequence[Sequence[int]]) -> None:
        self._original_module = original_module
        self._runner = runner
        self._shapes = [list(shape) for shape in shapes]

    def time_first_call(self) -> float:
        return float(self._ask(shapes=self._shapes)["first_s"])

    def warm_up(self, seconds: float) -> None:
        self._ask(warm_up=seconds)

    def time_turn(self, turn: Turn) -> list[float]:
        return list(map(float, self._ask(turn=asdict(turn))["times"]))

    def _ask(self, **job: Any) -> dict[str, Any]:
        return self._original_module.ask({"runner": self._runner, **job})
