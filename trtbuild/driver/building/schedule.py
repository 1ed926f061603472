"""What may start: kept up to date step by step, so that a build of thousands of steps costs no more for each of them.

Rules
1. A step may start when its plan says ``run`` and all that it consumes are hits; of steps with one key, one at a time.
2. When a step has finished, every model that has a step with that key is affected. Such a model has to be planned again
   (`due`) as soon as something that consumes finished steps waits for nothing else, or nothing of it is open any more.
   Until then its other steps go on: an engine that is done makes no other one possible, and planning a model after each
   of its hundred engines is work for nothing.
3. Nothing that has failed is started again, under whatever model.
4. Plans and marks change here and nowhere else; no thread, no clock and no file is involved.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from trtbuild.core.planning.graph import STAGES, ModelPlan, Step

#: How many steps that could start are looked at for one that `fits`: bounds the work when hardly any does.
LOOK_AHEAD = 16

#: (-rank, order of arrival, model, step id, number of the plan that it is from)
_Entry = tuple[float, int, str, str, int]


@dataclass
class _Model:
    """A plan that is being worked off."""

    plan: ModelPlan
    number: int
    #: Steps that are neither hits nor finished since the plan was made.
    open: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    #: Step id → how many of the steps that it consumes are open.
    waits_for: dict[str, int] = field(default_factory=dict)
    below: dict[str, list[str]] = field(default_factory=dict)
    #: Key → steps that have it and would run.
    keys: dict[str, list[str]] = field(default_factory=dict)
    due: bool = False


class Schedule:
    """The steps of all models that may start, most urgent first; those of `stages` alone."""

    def __init__(self, stages: Collection[str] = STAGES) -> None:
        self._stages = stages
        self._models: dict[str, _Model] = {}
        self._ready: list[_Entry] = []
        self._order = itertools.count()
        self._numbers = itertools.count()
        self._running: set[str] = set()
        self._failed: set[str] = set()
        #: Key that runs → steps with that key that could start otherwise.
        self._parked: dict[str, list[_Entry]] = {}
        self._users: dict[str, set[str]] = {}
        self._due: dict[str, None] = {}

    def put(self, plan: ModelPlan, ranks: Mapping[str, float]) -> None:
        """A model's plan is this now."""
        name = plan.model.name
        self._forget(name)
        model = self._models[name] = _Model(plan, next(self._numbers))
        for step in plan.steps.values():
            if step.verdict == "hit":
                continue
            model.open.add(step.id)
            waits = [before for before in step.after if before in plan.steps and plan.steps[before].verdict != "hit"]
            model.waits_for[step.id] = len(waits)
            for before in waits:
                model.below.setdefault(before, []).append(step.id)
            if step.verdict != "run" or step.key is None or step.stage not in self._stages:
                continue
            model.keys.setdefault(step.key, []).append(step.id)
            self._users.setdefault(step.key, set()).add(name)
            if not waits:
                entry = (-ranks.get(step.id, 0.0), next(self._order), name, step.id, model.number)
                heapq.heappush(self._ready, entry)

    def take(self, fits: Callable[[Step], bool] = lambda step: True) -> Step | None:
        """The most urgent step that may start and that `fits`. It counts as running from here on."""
        passed: list[_Entry] = []
        found: Step | None = None
        while self._ready and found is None and len(passed) < LOOK_AHEAD:
            entry = heapq.heappop(self._ready)
            step = self._current(entry)
            if step is None or step.key is None or step.key in self._failed:
                continue
            if step.key in self._running:
                self._parked.setdefault(step.key, []).append(entry)
            elif fits(step):
                found = step
                self._running.add(step.key)
            else:
                passed.append(entry)
        for entry in passed:
            heapq.heappush(self._ready, entry)
        return found

    def finished(self, step: Step) -> None:
        """A running step has left its record."""
        key = self._stop(step)
        self._parked.pop(key, None)
        users = self._users.get(key, set())
        if step.model not in users:  # it was planned again meanwhile, with another recipe
            self.invalidate(step.model)
        for name in users:
            model = self._models[name]
            for identifier in model.keys[key]:
                self._mark(name, model, identifier)

    def failed(self, step: Step) -> None:
        """A running step has failed, and with it all that have its key."""
        key = self._stop(step)
        self._parked.pop(key, None)
        self._failed.add(key)

    def again(self, step: Step) -> None:
        """A running step could not be done as things stand: its model has to be planned again."""
        for entry in self._parked.pop(self._stop(step), ()):
            heapq.heappush(self._ready, entry)
        self.invalidate(step.model)

    def invalidate(self, model: str) -> None:
        """The model has to be planned again."""
        if model in self._models:
            self._models[model].due = True
            self._due[model] = None

    def give_up(self, model: str) -> Step | None:
        """The model cannot be planned: nothing of it is started any more. Returns its first open step."""
        left = self._models[model]
        self._forget(model)
        return next((left.plan.steps[identifier] for identifier in left.plan.steps if identifier in left.open), None)

    def due(self) -> list[str]:
        """The models that have to be planned again before anything else of them can start."""
        found = [name for name in self._due if name in self._models and self._models[name].due]
        self._due.clear()
        return found

    def outdated(self) -> list[str]:
        """The models of which steps have finished since they were planned."""
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

    def _mark(self, name: str, model: _Model, identifier: str) -> None:
        if identifier not in model.open:
            return
        model.open.discard(identifier)
        model.finished.add(identifier)
        for waiting in model.below.get(identifier, ()):
            model.waits_for[waiting] -= 1
            if model.waits_for[waiting] == 0 and waiting in model.open:
                self.invalidate(name)
        if not model.open:
            self.invalidate(name)
