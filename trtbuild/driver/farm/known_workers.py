"""The workers of a scheduler during one build: those that exist, those that are unfit, and the labels that no worker has.

Rules
1. An `Overview` lists the workers with their labels. It is reused for `OVERVIEW_AGE_S` seconds, so the scheduler gets few
   requests. If it has no worker for a job, a new overview is requested, because a worker may have joined.
2. Each message for the user is reported once.
3. A label that no worker has is reported at once, and given up after `wait_s` seconds. If the workers that had it could
   not do the job, it is given up at once. Later jobs with the label then fail at once, until a worker has it. The same
   applies to a target if no worker has a GPU for it.
4. When the scheduler does not answer, it is lost for the rest of the build.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from trtbuild.driver.farm import labels
from trtbuild.driver.farm.overview import Overview
from trtbuild.errors import NoWorker, SchedulerLost

if TYPE_CHECKING:
    from distributed import Client

#: The seconds for which an overview is reused.
OVERVIEW_AGE_S = 0.5

#: The seconds in which a scheduler has to answer a request.
ANSWER_TIMEOUT_S = 30.0


class KnownWorkers:
    """The workers that a build knows. Thread-safe. `stores` are the labels of the stores that the build can use."""

    def __init__(self, client: Client, stores: Sequence[str], wait_s: float, report: Callable[[str], None]) -> None:
        self._client = client
        self._report = report
        self.wait_s = wait_s
        self.release = labels.release_label()
        self._lock = threading.Lock()
        self._request_lock = threading.Lock()
        self._overview = Overview((), self.release, tuple(stores))
        self._overview_time_s = float("-inf")
        #: Name of a worker → the reason why it is not used again.
        self._unfit: dict[str, str] = {}
        self._reported: set[str] = set()
        #: Label or description of a GPU → the time since which no worker has it. -inf: it was given up.
        self._absent_since_s: dict[str, float] = {}
        self._lost: str | None = None

    def overview(self, age_s: float = OVERVIEW_AGE_S) -> Overview:
        """The workers, as they were at most `age_s` seconds ago. Raises SchedulerLost."""
        if self._lost is not None:
            raise self.note_lost(self._lost)
        with self._request_lock:
            if time.monotonic() - self._overview_time_s < age_s:
                return self._overview
            request, scheduler = self._client.sync, self._client.scheduler
            try:
                identity = request(scheduler.identity, callback_timeout=ANSWER_TIMEOUT_S)
                processing = request(scheduler.processing, workers=None, callback_timeout=ANSWER_TIMEOUT_S)
            except Exception as error:  # Dask raises many types when a connection is lost
                raise self.note_lost(f"{type(error).__name__}: {error}") from error
            self._overview = Overview.of(identity, processing, self.release, self._overview.stores)
            self._overview_time_s = time.monotonic()
        for name, reason in self._overview.left_out().items():
            self._report_once(f"worker {name} is left out: {reason}")
        return self._overview

    def note_lost(self, reason: str) -> SchedulerLost:
        """Note that the scheduler is lost. Returns the error to raise."""
        with self._lock:
            self._lost = self._lost or reason
        return SchedulerLost(
            f"the connection to the scheduler was lost ({self._lost})",
            hint="build again when the scheduler runs: the finished results are in the cache",
        )

    def usable_slots(self, label: str, own_tasks: Collection[str]) -> int:
        """`Overview.usable_slots` of the present workers. Raises SchedulerLost."""
        return self.overview().usable_slots(label, own_tasks, self.unfit())

    def wait_for_store(self, label: str, poll_s: float, problems: Sequence[str] = ()) -> str:
        """Wait until a worker has the label. Returns the label of the store that jobs with this label use
        (`Overview.store_for`). Raises NoWorker, SchedulerLost.

        `problems` are the reasons why earlier attempts at the job failed. If there are any, and no worker has the label,
        NoWorker is raised at once.
        """
        while True:
            for age_s in (OVERVIEW_AGE_S, 0.0):  # first the last overview, then a new one (rule 1)
                store = self.overview(age_s).store_for(label, self.unfit())
                if store is not None:
                    self.note_present(label)
                    return store
            self.note_absent(label, problems)
            time.sleep(min(poll_s, self.wait_s))

    def wait_for_gpus(
        self, choose: Callable[[Sequence[str]], Sequence[str]], ability: str, poll_s: float
    ) -> Sequence[str]:
        """Wait until `choose` finds fitting labels among the workers' GPU labels. Returns the labels that it chooses.

        `ability` describes the GPU in messages, after the words "no worker". Raises NoWorker, SchedulerLost.
        """
        while True:
            for age_s in (OVERVIEW_AGE_S, 0.0):  # as in `wait_for_store`
                if chosen := choose(self.overview(age_s).gpu_labels(self.unfit())):
                    self.note_present(ability)
                    return chosen
            self.note_absent(ability)
            time.sleep(min(poll_s, self.wait_s))

    def note_present(self, label: str) -> None:
        with self._lock:
            self._absent_since_s.pop(label, None)

    def note_absent(self, label: str, problems: Sequence[str] = ()) -> None:
        """Note that no worker has the label. Report the label, or raise NoWorker if it is given up (rule 3).

        `label` may also be the `ability` of `wait_for_gpus`. With `problems`, the label is given up at once, because the
        workers that had it could not do the job.
        """
        now_s = time.monotonic()
        with self._lock:
            since_s = self._absent_since_s.setdefault(label, now_s)
        ability, compiles = labels.describe(label), labels.is_engine(label)
        seen = self._overview.describe(self.unfit(), lists_gpus=not compiles)
        if problems or now_s - since_s >= self.wait_s:
            with self._lock:
                self._absent_since_s[label] = float("-inf")
            raise NoWorker(
                f"no worker {ability}; {seen}",
                hint="start one with trtbuild worker on such a machine, or "
                + ("build without --workers" if compiles else "verify without --workers"),
            )
        subject = "the build" if compiles else "the verification"
        self._report_once(f"no worker {ability}: {subject} waits {self.wait_s:g} s for one; {seen}")

    def leave_out(self, worker: str, reason: str) -> None:
        """Do not use a worker again in this build. Report the reason."""
        with self._lock:
            self._unfit[worker] = reason
        self._report_once(f"worker {worker} is left out: {reason}")

    def unfit(self) -> dict[str, str]:
        """Name → reason, for the workers that are not used again."""
        with self._lock:
            return dict(self._unfit)

    def _report_once(self, text: str) -> None:
        with self._lock:
            if text in self._reported:
                return
            self._reported.add(text)
        self._report(text)
