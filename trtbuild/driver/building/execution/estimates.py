"""The expected duration and memory of a step, from the project's history and from file sizes.

Estimates decide the order of steps and the number of parallel steps, but never a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trtbuild.core.model.spec import Model
from trtbuild.core.planning.graph import Step
from trtbuild.core.planning.priorities import weights_bytes
from trtbuild.driver.building.execution import memory
from trtbuild.driver.project.history import History


class Estimates:
    """The last duration and memory peak of each step, and the expected memory peaks of the steps of `models`."""

    def __init__(self, history: History, project: Path, models: Mapping[str, Model]) -> None:
        self._history = history
        self._weights_bytes = {name: _file_size(project, model.weights) for name, model in models.items()}

    def last_duration_s(self, step_id: str) -> float | None:
        """The duration of a step's last run in seconds; None if it is not known."""
        last = self._history.last_run(step_id)
        return last.duration_s if last is not None and last.duration_s > 0 else None

    def last_peak_bytes(self, step_id: str) -> int | None:
        """The memory peak of a step's last run in bytes; None if it is not known."""
        last = self._history.last_run(step_id)
        return last.peak_rss_bytes or None if last is not None else None

    def estimate_bytes(self, step: Step) -> int:
        """The expected memory peak of a step in bytes (memory.py, rule 3)."""
        weights = weights_bytes(step) if step.stage == "engine" else self._weights_bytes.get(step.model, 0)
        return memory.estimate_bytes(step.stage, weights, self.last_peak_bytes(step.id))


def _file_size(project: Path, weights: str | None) -> int:
    try:
        return (project / weights).stat().st_size if weights else 0
    except OSError:
        return 0
