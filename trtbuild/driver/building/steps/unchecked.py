"""Steps whose results are used before the results are checked, and the records that wait for the checks.

A trace announces its program, and then compares the program with the module. A lower step announces its program, and then
compares it with the traced program. The steps that read an announced program start at once.

Rules
1. A step is *unchecked* from its announcement to its end. Plans use its results (`StoreLookups.note_announced`), although
   the store does not have its record yet.
2. The record of a step is published when all steps before it have passed their checks. Until then the record waits here.
   The step itself does not wait.
3. If a check fails, the records that wait for it are dropped, and the next plan does not use them.
4. The thread that ends the last check publishes the records that waited for it, in the order of their arrival.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trtbuild.core.planning.graph import ModelPlan, Step
from trtbuild.core.recipes.record import Output, Record
from trtbuild.driver.project.lookups import StoreLookups
from trtbuild.errors import InternalError


@dataclass
class _WaitingRecords:
    """The records of one step, which wait until earlier steps have passed their checks."""

    step_id: str
    records: Sequence[Record]
    #: Publishes the records, and returns the last one.
    put: Callable[[], Record]
    #: The keys of the unchecked steps that the records wait for.
    keys: set[str]


class UncheckedSteps:
    """The unchecked steps of a build, and the records that wait for them. Thread-safe."""

    def __init__(self, lookups: StoreLookups) -> None:
        self._lookups = lookups
        self._lock = threading.Lock()
        self._unchecked_keys: set[str] = set()
        self._failed_keys: set[str] = set()
        self._waiting: list[_WaitingRecords] = []
        #: The ids of the steps whose records were dropped, or could not be published.
        self._dropped_ids: set[str] = set()

    @property
    def unpublished_ids(self) -> set[str]:
        """The ids of the steps that ran, and whose records were dropped, could not be published, or still wait."""
        with self._lock:
            return self._dropped_ids.union(waiting.step_id for waiting in self._waiting)

    @property
    def unpublished_keys(self) -> frozenset[str]:
        """The keys of the results that plans use, and whose records are not published yet."""
        with self._lock:
            waiting_keys = (record.recipe.key for waiting in self._waiting for record in waiting.records)
            return frozenset(self._unchecked_keys.union(waiting_keys))

    @contextlib.contextmanager
    def running(self, step: Step, plan: ModelPlan, on_announced: Callable[[], None] | None) -> Iterator[Publication]:
        """Enter a block that runs `step`.

        `on_announced` is called after an announcement. If it is None, the step announces nothing.
        """
        publication = Publication(self, step, _keys_before(step, plan), on_announced)
        try:
            yield publication
        except BaseException:
            if publication.has_announced:
                self._note_failed(step)
            raise

    def note_announced(self, step: Step, record: Record) -> None:
        """Let plans use `record`, and let the records of later steps wait."""
        with self._lock:
            self._unchecked_keys.add(record.recipe.key)
            self._failed_keys.discard(record.recipe.key)  # the step has started again
            self._lookups.note_announced(step.id, record)

    def hold_back(self, step: Step, keys: frozenset[str], records: Sequence[Record], put: Callable[[], Record]) -> bool:
        """Drop the records of `step` if an earlier step has failed. Keep them here if an earlier step is unchecked.

        `keys` are the keys of the earlier steps. Returns False if the caller has to publish the records now.
        """
        with self._lock:
            if not self._failed_keys.isdisjoint(keys):
                self._dropped_ids.add(step.id)
                for record in records:  # the step may have announced its results before the earlier step failed
                    self._lookups.withdraw(step.id, record.recipe.key)
                return True
            unchecked_keys = self._unchecked_keys.intersection(keys)
            if not unchecked_keys:
                return False
            for record in records:
                self._lookups.use_record(record)
            self._lookups.note_run(step.id, records[-1])
            self._waiting.append(_WaitingRecords(step.id, records, put, unchecked_keys))
            return True

    def note_finished(self, step: Step, record: Record) -> None:
        """Note that a step has finished, and that its record is published."""
        with self._lock:
            self._lookups.note_run(step.id, record)
            if step.key is not None and step.key != record.recipe.key:  # the step had other dependencies than planned
                self._lookups.forget(step.key)
            self._dropped_ids.discard(step.id)

    def note_passed(self, key: str) -> None:
        """Note that the step with this key has passed its check. Publish the records that wait for no other check.

        If records cannot be published, raises the first error at the end.
        """
        with self._lock:
            self._unchecked_keys.discard(key)
            for waiting in self._waiting:
                waiting.keys.discard(key)
            ready = [waiting for waiting in self._waiting if not waiting.keys]
            self._waiting = [waiting for waiting in self._waiting if waiting.keys]
            self._dropped_ids -= {waiting.step_id for waiting in ready}
        errors: list[Exception] = []
        for waiting in ready:
            try:
                self._lookups.note_run(waiting.step_id, waiting.put())
            except Exception as error:
                errors.append(error)
                with self._lock:
                    self._dropped_ids.add(waiting.step_id)
        if errors:
            raise errors[0]

    def _note_failed(self, step: Step) -> None:
        """Note that an announced step has failed, and drop the records that wait for it."""
        key = step.key or step.id
        with self._lock:
            self._unchecked_keys.discard(key)
            self._failed_keys.add(key)
            self._lookups.withdraw(step.id, key)
            for waiting in [waiting for waiting in self._waiting if key in waiting.keys]:
                self._waiting.remove(waiting)
                self._dropped_ids.add(waiting.step_id)
                for record in waiting.records:
                    self._lookups.withdraw(waiting.step_id, record.recipe.key)


class Publication:
    """Announces the outputs of one running step, and publishes its records."""

    def __init__(
        self, steps: UncheckedSteps, step: Step, keys_before: frozenset[str], on_announced: Callable[[], None] | None
    ) -> None:
        self._steps = steps
        self._step = step
        self._keys_before = keys_before
        self._on_announced = on_announced
        self._announced_outputs: Mapping[str, Output] | None = None
        self._has_to_wait = False

    @property
    def has_announced(self) -> bool:
        return self._announced_outputs is not None

    def announce(self, outputs: Mapping[str, Output]) -> None:
        """Let later steps use the outputs of this step, which are not checked yet."""
        if self._on_announced is None or self._step.recipe is None:
            return
        self._announced_outputs = dict(outputs)
        self._steps.note_announced(self._step, Record(self._step.recipe, self._announced_outputs))
        self._on_announced()

    def compare_with_announced(self, outputs: Mapping[str, Output]) -> None:
        """Raise InternalError if the step has announced other outputs than `outputs`, which it returned."""
        if self._announced_outputs is not None and dict(outputs) != self._announced_outputs:
            raise InternalError(f"{self._step.id} has announced other outputs than it returned")

    def publish(self, records: Sequence[Record], put: Callable[[], Record]) -> Record:
        """Publish `records` when all earlier steps have passed their checks. The last record is the step's own.

        `put` publishes the records, and returns the step's record in the store. This method returns the same record. If the
        records have to wait or were dropped, it returns the last of `records`. Raises the errors of `put`.
        """
        self._has_to_wait = self._steps.hold_back(self._step, self._keys_before, records, put)
        return records[-1] if self._has_to_wait else put()

    def finish(self, record: Record) -> None:
        """Note that the step has ended with `record`, and publish the records that waited for its check.

        Raises the first error of publishing them.
        """
        if not self._has_to_wait:
            self._steps.note_finished(self._step, record)
        if self.has_announced:
            self._steps.note_passed(self._step.key or self._step.id)


def _keys_before(step: Step, plan: ModelPlan) -> frozenset[str]:
    """The keys of all steps on whose results `step` depends."""
    found: dict[str, Step] = {}
    open_ids = list(step.producers)
    while open_ids:
        step_id = open_ids.pop()
        if step_id in plan.steps and step_id not in found:
            found[step_id] = plan.steps[step_id]
            open_ids += found[step_id].producers
    return frozenset(each.key for each in found.values() if each.key is not None)
