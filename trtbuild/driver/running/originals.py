"""The module from which a package was built, in a separate process, for comparison with the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trtbuild.driver.project import wiring
from trtbuild.driver.workers.pool import Worker
from trtbuild.driver.workers.stopwatch import Dropped, Turn
from trtbuild.errors import TrtbuildError
from trtbuild.stages.trace.job import TraceJob


class Originals:
    """The process, as a context manager. `refused` is the reason if it cannot measure anything."""

    def __init__(self, project: Path, job: TraceJob, device: str) -> None:
        self.refused: str | None = None
        self.about: Mapping[str, Any] = {}
        self._worker = Worker("original", wiring.store_root(project), project)
        try:
            self.about = self._worker.call({"trace": job.to_json(), "device": device})
        except TrtbuildError as error:
            self.refused = error.text
        except BaseException:
            self._worker.kill()
            raise

    def __enter__(self) -> Originals:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._worker.kill()
        self._worker.end()

    def runner(self, name: str, shapes: Sequence[Sequence[int]]) -> Original:
        """Return the runner `name` (``eager`` or ``torch.compile``) for these shapes."""
        return Original(self, name, shapes)

    def ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of the process. Raises Dropped if the job fails, and always after the process has died."""
        if self.refused is None:
            try:
                reply = self._worker.call(job)
            except TrtbuildError as error:  # the process died, with the modules that it had loaded
                self.refused = error.text
            else:
                if "dropped" in reply:
                    raise Dropped(reply["dropped"])
                return reply
        raise Dropped(self.refused)


class Original:
    """One runner at one point; implements `trtbuild.driver.workers.stopwatch.Contender`."""

    def __init__(self, originals: Originals, runner: str, shapes: Sequence[Sequence[int]]) -> None:
        self._originals = originals
        self._runner = runner
        self._shapes = [list(shape) for shape in shapes]

    def first(self) -> float:
        return float(self._ask(shapes=self._shapes)["first_s"])

    def warm_up(self, seconds: float) -> None:
        self._ask(warm_up=seconds)

    def times(self, turn: Turn) -> list[float]:
        return list(map(float, self._ask(turn=asdict(turn))["times"]))

    def _ask(self, **job: Any) -> dict[str, Any]:
        return self._originals.ask({"runner": self._runner, **job})
