"""What is known of a step before it runs: how long it took last time, and how much memory it may take.

It comes from the project's history and from sizes of files, and decides an order and a number at once, never a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trtbuild.core.model.spec import Model
from trtbuild.core.planning.graph import Step
from trtbuild.core.planning.priorities import weights_bytes
from trtbuild.driver.building import memory
from trtbuild.driver.project.history import History


class Experience:
    """Last durations and peaks by step id, and estimates for the steps of `models`."""

    def __init__(self, history: History, project: Path, models: Mapping[str, Model]) -> None:
        self._history = history
        self._weights = {name: _file_size(project, model.weights) for name, model in models.items()}

    def last_duration_s(self, step: str) -> float | None:
        """Seconds that the last run of a step took, or None."""
        found = self._last(step, "duration_s")
        return None if found is None else float(found)

    def last_peak_bytes(self, step: str) -> int | None:
        """The most memory that the last run of a step took, or None."""
        found = self._last(step, "peak_rss_bytes")
        return None if found is None else int(found)

    def estimate_bytes(self, step: Step) -> int:
        """The most memory that a step is expected to take (driver/building/memory.py, rule 3)."""
        weights = weights_bytes(step) if step.stage == "engine" else self._weights.get(step.model, 0)
        return memory.estimate_bytes(step.stage, weights, self.last_peak_bytes(step.id))

    def _last(self, step: str, what: str) -> float | int | None:
        found = (self._history.last_run(step) or {}).get(what)
        return found if isinstance(found, int | float) and found > 0 else None


def _file_size(project: Path, weights: str | None) -> int:
    try:
        return (project / weights).stat().st_size if weights else 0
    except OSError:
        return 0
