"""The schedule: which steps may start next.

A finished step changes only the entries of steps with its key, and of the steps that read their outputs. So the time for
one finished step does not grow with the number of all steps.

Rules
1. A step may start if its verdict is ``run`` and all steps whose outputs it reads are hits. If several steps have the same
   key, one of them runs at a time.
2. A finished step counts in every model that has a step with its key. It makes such a model *due*, which means that the
   model has to be planned again, in two cases: all inputs of a waiting step are finished, or no step of the model is open.
   So a model with a hundred engines is not planned again after each engine, because its package waits for all of them. A
   retry, a changed key or a call of `invalidate` makes a model due, too.
3. A step with the key of a failed step does not start, in any model.
4. Only this module changes the plans of the schedule and the state of their steps. It uses no thread, no clock and no file.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from trtbuild.core.planning.graph import STAGES, ModelPlan, Step

#: One call of `take_step` calls `fits` for at most this many steps.
MAX_OFFERED_STEPS = 16

#: (-rank, order of arrival, model, step id, number of the plan that contains the step)
_QueueEntry = tuple[float, int, str, str, int]


@dataclass
class _Model:
    """A model's current plan, and the state of its steps."""

    plan: ModelPlan
    plan_number: int
    #: The ids of the steps that were not hits in this plan, and that have not finished since.
    open_steps: set[str] = field(default_factory=set)
    #: The ids of the steps that have finished since this plan.
    finished_steps: set[str] = field(default_factory=set)
    #: Step id → the number of open steps whose outputs it reads.
    open_input_counts: dict[str, int] = field(default_factory=dict)
    #: Step id → the ids of the steps that read its outputs.
    consumers: dict[str, list[str]] = field(default_factory=dict)
    #: Key → the ids of the steps with this key that have to run.
    steps_of_key: dict[str, list[str]] = field(default_factory=dict)
    #: Whether the model has to be planned again (rule 2).
    is_due: bool = False


class Schedule:
    """The steps of all models that may start, the most urgent first. Only steps of `stages` are scheduled."""

    def __init__(self, stages: Collection[str] = STAGES) -> None:
        self._stages = stages
        self._models: dict[str, _Model] = {}
        self._ready_entries: list[_QueueEntry] = []
        self._arrivals = itertools.count()
        self._plan_numbers = itertools.count()
        self._running_keys: set[str] = set()
        #: The ids of the running steps. A new plan may give a running trace another key, because its dependencies are new.
        self._running_ids: set[str] = set()
        self._failed_keys: set[str] = set()
        #: Key of a running step → the entries of other steps with that key, which could otherwise start.
        self._parked_entries: dict[str, list[_QueueEntry]] = {}
        #: Key → the models that have a step with that key.
        self._models_of_key: dict[str, set[str]] = {}
        self._due_models: dict[str, None] = {}

    def put_plan(self, plan: ModelPlan, ranks: Mapping[str, float]) -> None:
        """Replace the plan of a model. `ranks`: step id → urgency."""
        name = plan.model.name
        self._remove_model(name)
        model = self._models[name] = _Model(plan, next(self._plan_numbers))
        for step in plan.steps.values():
            if step.verdict == "hit":
                continue
            model.open_steps.add(step.id)
            open_inputs = [
                input_id
                for input_id in step.producers
                if input_id in plan.steps and plan.steps[input_id].verdict != "hit"
            ]
            model.open_input_counts[step.id] = len(open_inputs)
            for input_id in open_inputs:
                model.consumers.setdefault(input_id, []).append(step.id)
            if step.verdict != "run" or step.key is None or step.stage not in self._stages:
                continue
            model.steps_of_key.setdefault(step.key, []).append(step.id)
            self._models_of_key.setdefault(step.key, set()).add(name)
            if not open_inputs:
                entry = (-ranks.get(step.id, 0.0), next(self._arrivals), name, step.id, model.plan_number)
                heapq.heappush(self._ready_entries, entry)

    def take_step(self, fits: Callable[[Step], bool] = lambda step: True) -> Step | None:
        """Return the most urgent step that may start and fits, and mark it as running.

        Return None if no step may start, or if none of the `MAX_OFFERED_STEPS` most urgent steps fits.
        """
        refused: list[_QueueEntry] = []
        taken: Step | None = None
        while self._ready_entries and taken is None and len(refused) < MAX_OFFERED_STEPS:
            entry = heapq.heappop(self._ready_entries)
            step = self._step_of_entry(entry)
            if step is None or step.key is None or step.key in self._failed_keys:
                continue
            if step.id in self._running_ids and step.key not in self._running_keys:
                continue  # the model is planned again when the running step ends
            if step.key in self._running_keys:
                self._parked_entries.setdefault(step.key, []).append(entry)
            elif fits(step):
                taken = step
                self._running_keys.add(step.key)
                self._running_ids.add(step.id)
            else:
                refused.append(entry)
        for entry in refused:
            heapq.heappush(self._ready_entries, entry)
        return taken

    def note_finished(self, step: Step) -> None:
        """Note that a running step has finished, and that its record exists."""
        key = self._mark_stopped(step)
        self._parked_entries.pop(key, None)
        model_names = self._models_of_key.get(key, set())
        if step.model not in model_names:  # the model was planned again meanwhile, and the step has another recipe now
            self.invalidate(step.model)
        for name in model_names:
            model = self._models[name]
            for step_id in model.steps_of_key[key]:
                self._mark_finished(name, model, step_id)

    def note_failed(self, step: Step) -> None:
        """Note that a running step has failed. The other steps with its key will not start."""
        key = self._mark_stopped(step)
        self._parked_entries.pop(key, None)
        self._failed_keys.add(key)

    def note_retry(self, step: Step) -> None:
        """Note that a running step has stopped because it could not read a blob. Its model is due."""
        for entry in self._parked_entries.pop(self._mark_stopped(step), ()):
            heapq.heappush(self._ready_entries, entry)
        self.invalidate(step.model)

    def invalidate(self, model: str) -> None:
        """Note that the model is due: it has to be planned again."""
        if model in self._models:
            self._models[model].is_due = True
            self._due_models[model] = None

    def give_up(self, model: str) -> Step | None:
        """Remove a model that cannot be planned. Returns its first open step, or None."""
        removed = self._models[model]
        self._remove_model(model)
        return next((step for step_id, step in removed.plan.steps.items() if step_id in removed.open_steps), None)

    def take_due_models(self) -> list[str]:
        """The models that have become due since the last call."""
        names = [name for name in self._due_models if name in self._models and self._models[name].is_due]
        self._due_models.clear()
        return names

    def outdated_models(self) -> list[str]:
        """The models with a step that has finished since their last plan, and the models that are due."""
        return [name for name, model in self._models.items() if model.finished_steps or model.is_due]

    def _remove_model(self, name: str) -> None:
        model = self._models.pop(name, None)
        for key in model.steps_of_key if model is not None else ():
            model_names = self._models_of_key[key]
            model_names.discard(name)
            if not model_names:
                del self._models_of_key[key]

    def _step_of_entry(self, entry: _QueueEntry) -> Step | None:
        _, _, name, step_id, plan_number = entry
        model = self._models.get(name)
        if model is None or model.plan_number != plan_number or step_id not in model.open_steps:
            return None
        return model.plan.steps[step_id]

    def _mark_stopped(self, step: Step) -> str:
        if step.key is None:
            raise AssertionError("a step that runs has a key")
        self._running_keys.discard(step.key)
        self._running_ids.discard(step.id)
        return step.key

    def _mark_finished(self, name: str, model: _Model, step_id: str) -> None:
        if step_id not in model.open_steps:
            return
        model.open_steps.discard(step_id)
        model.finished_steps.add(step_id)
        for consumer in model.consumers.get(step_id, ()):
            model.open_input_counts[consumer] -= 1
            if model.open_input_counts[consumer] == 0 and consumer in model.open_steps:
                self.invalidate(name)
        if not model.open_steps:
            self.invalidate(name)
