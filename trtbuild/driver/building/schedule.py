"""The schedule: which steps may start next.

Each finished step updates the schedule, so the cost for one step does not grow with the number of steps.

Rules
1. A step may start if its verdict is ``run`` and all steps that it consumes are hits. If several steps have the same key,
   one of them runs at a time.
2. A finished step affects every model that has a step with its key. Such a model has to be planned again (`due`) in two
   cases: all inputs of another step of the model are finished, or the model has no open step. Until then its other steps
   continue. So a model with a hundred engines is not planned again after each engine: no other step waits for one engine.
3. A failed key is not started again, for any model.
4. Only this module changes the schedule's plans and the state of their steps. It uses no thread, no clock and no file.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from trtbuild.core.planning.graph import STAGES, ModelPlan, Step

#: The most steps that `take` offers to `fits` in one call.
LOOK_AHEAD = 16

#: (-rank, order of arrival, model, step id, number of its plan)
_Entry = tuple[float, int, str, str, int]


@dataclass
class _Model:
    """A model's current plan, and the state of its steps."""

    plan: ModelPlan
    number: int
    #: Steps that were not hits in this plan, and that have not finished since.
    open: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    #: Step id → the number of open steps that it consumes.
    waits_for: dict[str, int] = field(default_factory=dict)
    #: Step id → the steps that consume it.
    consumers: dict[str, list[str]] = field(default_factory=dict)
    #: Key → the steps with this key that have to run.
    keys: dict[str, list[str]] = field(default_factory=dict)
    due: bool = False


class Schedule:
    """The steps of all models that may start, the most urgent first. Only steps of `stages` are scheduled."""

    def __init__(self, stages: Collection[str] = STAGES) -> None:
        self._stages = stages
        self._models: dict[str, _Model] = {}
        self._ready: list[_Entry] = []
        self._arrivals = itertools.count()
        self._plan_numbers = itertools.count()
        self._running: set[str] = set()
        self._failed: set[str] = set()
        #: Key of a running step → other steps with that key, which could otherwise start.
        self._parked: dict[str, list[_Entry]] = {}
        #: Key → the models that have a step with that key.
        self._users: dict[str, set[str]] = {}
        self._due: dict[str, None] = {}

    def put(self, plan: ModelPlan, ranks: Mapping[str, float]) -> None:
        """Replace the plan of a model. `ranks` contains the urgency of its steps, by step id."""
        name = plan.model.name
        self._forget(name)
        model = self._models[name] = _Model(plan, next(self._plan_numbers))
        for step in plan.steps.values():
            if step.verdict == "hit":
                continue
            model.open.add(step.id)
            waits = [
                before for before in step.producers if before in plan.steps and plan.steps[before].verdict != "hit"
            ]
            model.waits_for[step.id] = len(waits)
            for before in waits:
                model.consumers.setdefault(before, []).append(step.id)
            if step.verdict != "run" or step.key is None or step.stage not in self._stages:
                continue
            model.keys.setdefault(step.key, []).append(step.id)
            self._users.setdefault(step.key, set()).add(name)
            if not waits:
                entry = (-ranks.get(step.id, 0.0), next(self._arrivals), name, step.id, model.number)
                heapq.heappush(self._ready, entry)

    def take(self, fits: Callable[[Step], bool] = lambda step: True) -> Step | None:
        """Return the most urgent step that may start and that `fits`, and mark it as running; None if no step may start."""
        refused: list[_Entry] = []
        taken: Step | None = None
        while self._ready and taken is None and len(refused) < LOOK_AHEAD:
            entry = heapq.heappop(self._ready)
            step = self._current(entry)
            if step is None or step.key is None or step.key in self._failed:
                continue
            if step.key in self._running:
                self._parked.setdefault(step.key, []).append(entry)
            elif fits(step):
                taken = step
                self._running.add(step.key)
            else:
                refused.append(entry)
        for entry in refused:
            heapq.heappush(self._ready, entry)
        return taken

    def finished(self, step: Step) -> None:
        """Note that a running step has finished, and that its record exists."""
        key = self._stop(step)
        self._parked.pop(key, None)
        users = self._users.get(key, set())
        if step.model not in users:  # the model was planned again meanwhile, and the step has another recipe now
            self.invalidate(step.model)
        for name in users:
            model = self._models[name]
            for identifier in model.keys[key]:
                self._mark_finished(name, model, identifier)

    def failed(self, step: Step) -> None:
        """Note that a running step has failed. All other steps with its key have failed, too."""
        key = self._stop(step)
        self._parked.pop(key, None)
        self._failed.add(key)

    def again(self, step: Step) -> None:
        """Note that a running step could not be finished with the current plan: its model has to be planned again."""
        for entry in self._parked.pop(self._stop(step), ()):
            heapq.heappush(self._ready, entry)
        self.invalidate(step.model)

    def invalidate(self, model: str) -> None:
        """Note that the model has to be planned again."""
        if model in self._models:
            self._models[model].due = True
            self._due[model] = None

    def give_up(self, model: str) -> Step | None:
        """Remove a model that cannot be planned: none of its steps is started. Returns its first open step, or None."""
        removed = self._models[model]
        self._forget(model)
        return next((step for identifier, step in removed.plan.steps.items() if identifier in removed.open), None)

    def due(self) -> list[str]:
        """Return and clear the list of models that have to be planned again before another of their steps can start."""
        names = [name for name in self._due if name in self._models and self._models[name].due]
        self._due.clear()
        return names

    def outdated(self) -> list[str]:
        """The models with steps that have finished after they were planned."""
        return [name for name, model in self._models.items() if model.finished or model.due]

    def _forget(self, name: str) -> None:
        model = self._models.pop(name, None)
        for key in model.keys if model is not None else ():
            users = self._users[key]
            users.discard(name)
            if not users:
                del self._users[key]

    def _current(self, entry: _Entry) -> Step | None:
        _, _, name, identifier, number = entry
        model = self._models.get(name)
        if model is None or model.number != number or identifier not in model.open:
            return None
        return model.plan.steps[identifier]

    def _stop(self, step: Step) -> str:
        if step.key is None:
            raise AssertionError("a step that runs has a key")
        self._running.discard(step.key)
        return step.key

    def _mark_finished(self, name: str, model: _Model, identifier: str) -> None:
        if identifier not in model.open:
            return
        model.open.discard(identifier)
        model.finished.add(identifier)
        for consumer in model.consumers.get(identifier, ()):
            model.waits_for[consumer] -= 1
            if model.waits_for[consumer] == 0 and consumer in model.open:
                self.invalidate(name)
        if not model.open:
            self.invalidate(name)
