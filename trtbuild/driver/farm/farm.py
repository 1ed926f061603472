"""Runs engine steps on the workers of a scheduler. Several threads call `Farm.compile`, one for each step.

Rules
1. The scheduler gets a job only when a worker has a free slot for it (`limit`), so the build's order of steps stays true.
   One job for each label is an exception: it waits until a worker has the label (`census`).
2. The key of a task is the key of the step, so two builds with one scheduler share the job.
3. An answer is verified as a record of a remote cache is: its recipe, its signatures, and the digest of each blob. A worker
   whose answer is wrong, or that cannot do the job, is not used again in this build. Another worker gets the job.
4. A job fails at once if the compiler refuses it. After `MOST_ATTEMPTS` wrong answers or deaths it fails with all reasons.
5. When the scheduler is lost, every job fails. The build keeps what is done.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.farm import labels
from trtbuild.driver.farm.census import ANSWER_S, Census
from trtbuild.driver.farm.exchange import Exchange, blob_files
from trtbuild.driver.farm.messages import PROTOCOL, Answer, FarmJob
from trtbuild.driver.farm.performing import perform
from trtbuild.driver.farm.verifying import WrongAnswer, verified_record
from trtbuild.driver.workers.pool import error_from_json
from trtbuild.errors import SchedulerLost, StoreError, TrtbuildError, WorkersError
from trtbuild.store.layers.layered import LayeredStore

if TYPE_CHECKING:
    from distributed import Client, Future

#: The attempts of one job: deaths of a compiler, wrong answers, and workers that cannot do the job.
MOST_ATTEMPTS = 3

#: The seconds between two checks of a waiting job.
POLL_S = 1.0


@dataclass(frozen=True)
class Compiled:
    """An engine that a worker has compiled: its published record, and the worker's name, log and memory peak."""

    record: Record
    worker: str
    log: str
    peak_rss_bytes: int


class Farm:
    """The workers of one scheduler, for one build. `exchanges` are the stores that may be shared with them, by label."""

    def __init__(self, client: Client, census: Census, store: LayeredStore, exchanges: Mapping[str, Exchange]) -> None:
        self._client = client
        self._census = census
        self._store = store
        self._exchanges = exchanges
        self._lock = threading.Lock()
        #: Engine label → the number of jobs that the build has started and not ended.
        self._open_jobs: Counter[str] = Counter()
        #: Task → its future.
        self._futures: dict[str, Future[str]] = {}

    def has_room(self, label: str) -> bool:
        """Whether a job with this label may start now (rule 1)."""
        with self._lock:
            open_jobs, own_tasks = self._open_jobs[label], set(self._futures)
        if open_jobs == 0:
            return True
        try:
            return self._census.free_slots(label, own_tasks) > open_jobs
        except SchedulerLost:
            return True  # the job then fails with this error

    def begin(self, label: str) -> None:
        """Note that a job with this label starts."""
        with self._lock:
            self._open_jobs[label] += 1

    def end(self, label: str) -> None:
        """Note that a job with this label has ended."""
        with self._lock:
            self._open_jobs[label] -= 1

    def cancel(self) -> None:
        """Cancel all jobs: the build was interrupted. A compiler that runs on another machine still ends its job."""
        self._census.lost("the build was interrupted")
        with self._lock:
            futures = list(self._futures.values())
        with contextlib.suppress(Exception):  # the connection may be lost already
            self._client.cancel(futures)

    def compile(self, recipe: Recipe, job: EngineJob, inputs: Sequence[str], *, replace: bool) -> Compiled:
        """Compile an engine on a worker, and publish its record. The inputs are in the local store.

        Raises NoWorker, SchedulerLost, WorkersError, StoreError, or the error of the compiler.
        """
        label = labels.engine_label(job)
        problems: list[str] = []
        logs = ""
        while len(problems) < MOST_ATTEMPTS:
            shared = self._census.wait_for_worker(label, POLL_S, problems)
            exchange = self._exchanges[shared]
            files = blob_files(self._store.local, inputs)
            exchange.send(self._store.local, files)
            message = FarmJob(PROTOCOL, recipe.key, job, shared, files, replace)
            answer = self._ask(message, label, is_shared=not replace and not problems)
            logs += answer.log
            if answer.outcome == "failed":
                raise _error_of(answer)
            if answer.outcome == "done":
                try:
                    record = verified_record(answer, recipe, self._store, exchange, replace=replace)
                    return Compiled(record, answer.worker, answer.log, answer.peak_rss_bytes)
                except (WrongAnswer, StoreError) as error:
                    reason = f"its answer was wrong: {error}"
            else:
                reason = str((answer.error or {}).get("text", "it gave no reason"))
            problems.append(f"{answer.worker}: {reason}")
            if answer.outcome != "died":
                self._census.leave_out(answer.worker, reason)
        refused = WorkersError(
            "the workers could not do it:\n    " + "\n    ".join(problems),
            hint="repair these workers, or build without --workers",
        )
        refused.worker_log = logs
        raise refused

    def _ask(self, message: FarmJob, label: str, *, is_shared: bool) -> Answer:
        """Send a job, and wait for its answer. Raises NoWorker, SchedulerLost, WorkersError."""
        task = labels.task_name(message.key, message.store) + ("" if is_shared else f"-{uuid.uuid4().hex}")
        unfit = self._census.unfit()
        addresses = {worker.address for worker in self._census.overview().able(label, unfit)}
        done = threading.Event()
        try:
            future = self._client.submit(
                perform,
                message.to_text(),
                key=task,
                resources={label: 1, self._census.release: 1, message.store: 1},
                workers=sorted(addresses) if unfit else None,
            )
            with self._lock:
                self._futures[task] = future
            future.add_done_callback(lambda _: done.set())
            while not done.wait(POLL_S):
                workers = self._census.overview().able(label, unfit)
                if not workers:
                    self._census.refuse_absent(label)
                    continue
                self._census.note_present(label)
                if unfit and addresses.isdisjoint(worker.address for worker in workers):
                    return _death(message, "it ended, and was started again under another address")
            return _answer_of(future, message)
        except TrtbuildError:
            raise
        except Exception as error:  # Dask raises many types when a connection is lost
            raise self._census.lost(f"{type(error).__name__}: {error}") from error
        finally:
            with self._lock:
                future_or_none = self._futures.pop(task, None)
            if future_or_none is not None:
                future_or_none.release()  # cancels the task if no other build needs it


def _answer_of(future: Future[str], message: FarmJob) -> Answer:
    """The answer of a finished task. Raises WorkersError, and any error of Dask."""
    from distributed import KilledWorker

    if future.status == "cancelled":
        raise ConnectionError("the scheduler has dropped the job")
    try:
        return Answer.from_text(future.result(timeout=ANSWER_S))
    except KilledWorker as error:
        last = getattr(error.last_worker, "name", error.last_worker)
        raise WorkersError(
            f"each worker process that ran this step died; the last one was {last}",
            hint="look at the output of trtbuild worker there; the system ends processes when memory runs out",
        ) from None
    except Exception as error:
        if future.status != "error" and not isinstance(error, ValueError):
            raise  # the connection is lost
        return _death(message, f"{type(error).__name__}: {error}")


def _death(message: FarmJob, text: str) -> Answer:
    return Answer(PROTOCOL, message.key, "the worker", "died", error={"text": text})


def _error_of(answer: Answer) -> TrtbuildError:
    fields: Mapping[str, Any] = answer.error or {"text": "the worker gave no reason"}
    error = error_from_json(fields, answer.log)
    error.worker_log = answer.log
    return error
