"""Runs engine steps and comparisons on the workers of a scheduler, and tries again if a worker dies.

Rules
1. A job needs a worker with a certain label, which names the engines that the worker compiles, or its GPU (module
   `labels`). A job is open from its start until its end. If another job with the same label is open, a job starts only when
   such a worker has a free slot (modules `limit` and `overview`). So the most urgent steps start first. If no job with the
   label is open, a job starts without a free slot, and waits until a worker has the label (module `known_workers`).
2. The name of a task contains the step's key and the store. So two builds with one scheduler share the task. A job that
   replaces a record, or that is tried again, gets a separate task.
3. An answer is verified like a record of a remote cache: its recipe, its signatures, and the digest of each blob. If the
   answer is wrong, or if the worker cannot do the job, another worker gets the job. This build does not use the faulty
   worker again. But if an input of the job is missing or damaged, no worker is at fault: the input is repaired, or the
   build makes it again (`Exchange.repair`).
4. If the compiler or the comparison reports an error, the job fails at once. It also fails at once if Dask has given up
   its task, because each worker that ran the task died. Otherwise it fails after `MOST_ATTEMPTS` failed attempts, and the
   error lists the reasons of all attempts.
5. When the scheduler is lost, the jobs that have not ended fail. The results of finished jobs are kept.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.farm import answers, labels
from trtbuild.driver.farm.answers import answer_of, answer_of_dead_worker, error_of
from trtbuild.driver.farm.exchange import Exchange, blob_files
from trtbuild.driver.farm.known_workers import ANSWER_TIMEOUT_S, KnownWorkers
from trtbuild.driver.farm.messages import PROTOCOL, Answer, FarmJob
from trtbuild.driver.farm.performing import perform
from trtbuild.driver.farm.verifying import VerifiedReport, WrongAnswer, verified_record, verified_report
from trtbuild.driver.gpu_comparisons.gpu_kinds import GpuKind
from trtbuild.driver.gpu_comparisons.job import ComparisonJob
from trtbuild.errors import (
    BlobMissing,
    EntryCorrupt,
    RemoteLied,
    SchedulerLost,
    StoreError,
    StoreUnavailable,
    TrtbuildError,
    WorkersError,
)
from trtbuild.store.layers.layered import LayeredStore

if TYPE_CHECKING:
    from distributed import Client, Future

_Result = TypeVar("_Result")

#: A job fails after this many failed attempts. An attempt fails if the compiler dies, if the answer is wrong, or if the
#: worker cannot do the job.
MOST_ATTEMPTS = 3

#: The seconds between two checks of a waiting job.
POLL_S = 1.0

#: The seconds between two checks whether a comparison may start.
_START_POLL_S = 0.2

#: The types of a worker's errors if a blob is missing or damaged.
_BLOB_ERRORS = frozenset(kind.__name__ for kind in (BlobMissing, EntryCorrupt, RemoteLied))


@dataclass(frozen=True)
class CompiledOnWorker:
    """An engine that a worker has compiled. `record` is published."""

    record: Record
    worker: str
    log: str
    peak_rss_bytes: int


@dataclass(frozen=True)
class ComparedOnWorker:
    """A comparison that a worker has made."""

    report: VerifiedReport
    worker: str
    log: str


@dataclass(frozen=True)
class _JobRequest:
    """A job for the workers with the label `label`. With `replace`, a worker's earlier record of the job is not used."""

    recipe: Recipe
    job: ComparisonJob | EngineJob
    inputs: Sequence[str]
    label: str
    replace: bool


class Farm:
    """The workers of one scheduler, for one build. Thread-safe.

    `exchanges` maps labels to the stores that workers may share with this machine."""

    def __init__(
        self, client: Client, workers: KnownWorkers, store: LayeredStore, exchanges: Mapping[str, Exchange]
    ) -> None:
        self._client = client
        self._workers = workers
        self._store = store
        self._exchanges = exchanges
        self._lock = threading.Lock()
        self._start_lock = threading.Lock()
        #: Engine or GPU label → the number of jobs that the build has started, and that have not ended.
        self._open_jobs: Counter[str] = Counter()
        #: The futures of the open tasks. Two jobs may have the same task, each with its own future.
        self._futures: list[Future[str]] = []

    def has_room(self, label: str) -> bool:
        """Whether a job with this label may start now (rule 1)."""
        with self._lock:
            open_jobs, own_tasks = self._open_jobs[label], {str(future.key) for future in self._futures}
        if open_jobs == 0:
            return True
        try:
            return self._workers.usable_slots(label, own_tasks) > open_jobs
        except SchedulerLost:
            return True  # the job then fails with this error

    def begin(self, label: str) -> None:
        """Note that a job with this label starts. `end` must follow."""
        with self._lock:
            self._open_jobs[label] += 1

    def end(self, label: str) -> None:
        with self._lock:
            self._open_jobs[label] -= 1

    def cancel(self) -> None:
        """Cancel all jobs, because the build was interrupted. A compiler on another machine still finishes its job."""
        self._workers.note_lost("the build was interrupted")
        with self._lock:
            futures = list(self._futures)
        with contextlib.suppress(Exception):  # the connection may be lost already
            self._client.cancel(futures)

    def compile(self, recipe: Recipe, job: EngineJob, inputs: Sequence[str], *, replace: bool) -> CompiledOnWorker:
        """Compile an engine on a worker, and publish its record. `inputs` are the SHA-256 of blobs in the local store.

        Raises NoWorker, SchedulerLost, WorkersError, StoreError (BlobMissing or EntryCorrupt if an input is missing or
        damaged), or the error of the compiler.
        """
        request = _JobRequest(recipe, job, inputs, labels.engine_label(job), replace)

        def accept(answer: Answer, exchange: Exchange) -> CompiledOnWorker:
            record = verified_record(answer, recipe, self._store, exchange, replace=replace)
            return CompiledOnWorker(record, answer.worker, answer.log, answer.peak_rss_bytes)

        return self._run_job(request, accept)

    def compare(self, job: ComparisonJob, *, replace: bool) -> ComparedOnWorker:
        """Compare engines with PyTorch or onnxruntime, on a worker with a GPU of the kind `job.gpu`.

        The result has the record of the comparison, which the caller may store. The local store must have the blobs of the
        job. Without `replace`, commands that request the same comparison at the same time share it (rule 2). Raises
        NoWorker, SchedulerLost, WorkersError, StoreError, NotCompared, or the error of the comparison.
        """
        recipe = job.recipe
        request = _JobRequest(recipe, job, list(dict.fromkeys(job.blobs())), labels.gpu_label(job.gpu), replace)

        def accept(answer: Answer, exchange: Exchange) -> ComparedOnWorker:
            return ComparedOnWorker(
                verified_report(answer, recipe, job, self._store.local, exchange), answer.worker, answer.log
            )

        with self._started_job(request.label):
            return self._run_job(request, accept)

    def wait_for_gpus(
        self, choose: Callable[[Sequence[GpuKind]], Sequence[GpuKind]], ability: str
    ) -> Sequence[GpuKind]:
        """Wait until `choose` finds fitting kinds among the workers' GPUs. Returns the kinds that it chooses.

        `ability` describes the GPU in messages, after the words "no worker". Raises NoWorker, SchedulerLost.
        """

        def choose_labels(found: Sequence[str]) -> Sequence[str]:
            kinds = [kind for label in found if (kind := labels.gpu_kind_of(label)) is not None]
            return [labels.gpu_label(kind) for kind in choose(kinds)]

        chosen = self._workers.wait_for_gpus(choose_labels, ability, POLL_S)
        return [kind for label in chosen if (kind := labels.gpu_kind_of(label)) is not None]

    @contextlib.contextmanager
    def _started_job(self, label: str) -> Iterator[None]:
        """Wait until a job with this label may start (rule 1), and count it as open until the block ends."""
        while True:
            with self._start_lock:
                if self.has_room(label):
                    self.begin(label)
                    break
            time.sleep(_START_POLL_S)
        try:
            yield
        finally:
            self.end(label)

    def _run_job(self, request: _JobRequest, accept: Callable[[Answer, Exchange], _Result]) -> _Result:
        """Let a worker do a job. Returns the result of `accept`, which verifies the answer.

        `accept` may raise WrongAnswer or StoreError. Another worker then gets the job.
        """
        problems: list[str] = []
        logs = ""
        excused: set[str] = set()  # the workers that lacked an input which was then repaired
        while len(problems) < MOST_ATTEMPTS:
            store = self._workers.wait_for_store(request.label, POLL_S, problems)
            exchange = self._exchanges[store]
            files = blob_files(self._store.local, request.inputs)
            exchange.send(self._store.local, files)
            message = FarmJob(PROTOCOL, request.recipe.key, request.job, store, files, request.replace)
            answer = self._send_and_wait(message, request.label, is_shared=not request.replace and not problems)
            logs += answer.log
            if answer.outcome == "failed":
                raise error_of(answer)
            if answer.outcome == "done":
                try:
                    return accept(answer, exchange)
                except StoreUnavailable:
                    raise  # the cache of this machine has failed, so no worker is left out
                except (WrongAnswer, StoreError) as error:
                    reason = f"its answer was wrong: {error}"
            else:
                reason = str((answer.error or {}).get("text", "it gave no reason"))
            problems.append(f"{answer.worker}: {reason}")
            if answer.worker not in excused and _lacks_input(answer) and exchange.repair(self._store.local, files):
                excused.add(answer.worker)  # it could not read an input, and should be able to read it now
                continue
            if answer.outcome != "died":
                self._workers.leave_out(answer.worker, reason)
        failure = WorkersError(
            "the workers could not do the job:\n    " + "\n    ".join(problems),
            hint="repair these workers, or repeat the command without --workers",
        )
        failure.worker_log = logs
        raise failure

    def _send_and_wait(self, message: FarmJob, label: str, *, is_shared: bool) -> Answer:
        """Send a job, and wait for its answer. With `is_shared`, another build may wait for the same task (rule 2)."""
        task = labels.task_name(message.key, message.store) + ("" if is_shared else f"-{uuid.uuid4().hex}")
        unfit = self._workers.unfit()
        workers = self._workers.overview().workers_with(label, message.store, unfit)
        addresses = {worker.address for worker in workers}
        if unfit and not addresses:  # with an empty list of workers, Dask would use any worker
            return answer_of_dead_worker(message, "it ended before it got the job")
        done = threading.Event()
        future: Future[str] | None = None
        try:
            future = self._client.submit(
                perform,
                message.to_text(),
                key=task,
                resources={label: 1, self._workers.release: 1, message.store: 1},
                workers=sorted(addresses) if unfit else None,
            )
            with self._lock:
                self._futures.append(future)
            future.add_done_callback(lambda _: done.set())
            while not done.wait(POLL_S):
                overview = self._workers.overview()
                workers = overview.workers_with(label, message.store, unfit)
                if not workers and overview.store_for(label, unfit) is not None:
                    # the task is limited to one store, so no worker would ever do it
                    return answer_of_dead_worker(message, "it ended, and the other workers share another store")
                if not workers:
                    self._workers.note_absent(label)
                    continue
                self._workers.note_present(label)
                if unfit and addresses.isdisjoint(worker.address for worker in workers):
                    # the task is limited to the old addresses, so no worker would ever do it
                    text = "it ended, and was started again under another address"
                    return answer_of_dead_worker(message, text)
            return self._receive_answer(future, message)
        except TrtbuildError:
            raise
        except Exception as error:  # Dask raises many types when a connection is lost
            raise self._workers.note_lost(f"{type(error).__name__}: {error}") from error
        finally:
            if future is not None:
                with self._lock:
                    self._futures = [open_future for open_future in self._futures if open_future is not future]
                future.release()  # cancels the task if no other job needs it

    def _receive_answer(self, future: Future[str], message: FarmJob) -> Answer:
        """The answer of a finished task. If it does not arrive or cannot be read, the outcome is ``unfit``."""
        try:
            return answer_of(future, message)
        except TimeoutError:
            text = f"it has not sent its answer in {answers.RESULT_TIMEOUT_S:g} s"
        except WrongAnswer as error:
            text = f"its answer was wrong: {error}"
        workers = self._workers.overview(0.0).workers  # raises SchedulerLost if the scheduler is silent, too
        who_has = self._client.scheduler.who_has
        holders = self._client.sync(who_has, keys=[future.key], callback_timeout=ANSWER_TIMEOUT_S).get(future.key, ())
        name = next((worker.name for worker in workers if worker.address in holders), "the worker")
        return Answer(PROTOCOL, message.key, name, "unfit", error={"text": text})


def _lacks_input(answer: Answer) -> bool:
    """Whether the worker may lack an input: a blob was missing or damaged there."""
    error = answer.error or {}
    return answer.outcome == "unfit" and error.get("type") in _BLOB_ERRORS
