"""Compile an engine, or compare engines, on a worker of a scheduler.

`perform` takes a job as JSON, and returns the answer as JSON.

Rules
1. The worker checks the version of the message, the key, the installed toolchain, and the GPU. If the job does not fit
   this machine, the answer is ``unfit``, and another worker gets the job.
2. A separate process (`trtbuild.driver.workers`) compiles the engine. Its environment variables are in the engine's key,
   except those for library paths and GPUs. This process never loads TensorRT. If the compiler crashes,
   this process still sends an answer.
3. The store is opened for each job, with this machine's remotes, trusted keys and signing key. If a remote was down
   during one job, the next job uses it again.
4. If this machine has a record of the engine and trusts it, the record is used, unless the job replaces it. The worker
   does not lock the key, because the driver may have locked it in the same directory. A lock is not necessary: the
   scheduler runs equal jobs once, and a record is written only once.
5. `comparing` does the jobs that compare engines with PyTorch or onnxruntime.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from trtbuild.core.engines.engine_job import ENGINE_ENVIRONMENT, EngineJob
from trtbuild.core.recipes import keys
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.farm import comparing
from trtbuild.driver.farm.exchange import Exchange, blob_files, exchanges
from trtbuild.driver.farm.messages import PROTOCOL, Answer, FarmJob, Outcome
from trtbuild.driver.gpu_comparisons.job import ComparisonJob
from trtbuild.driver.project import wiring
from trtbuild.driver.workers.pool import WorkerPool
from trtbuild.driver.workers.provenance import provenance
from trtbuild.driver.workers.tasks import call
from trtbuild.driver.workers.worker import error_to_json
from trtbuild.driver.workers.worker_process import WorkerDied
from trtbuild.errors import (
    EnvironmentFault,
    InsufficientResources,
    InternalError,
    RecordUntrusted,
    StoreError,
    ToolchainMissing,
    TrtbuildError,
    UsageError,
)
from trtbuild.store.layers.sendable import read_complete_record
from trtbuild.store.local.local import LocalStore
from trtbuild.toolchain.libraries import table
from trtbuild.toolchain.libraries.devices import device_sms

#: The environment variable with the directory of a worker's caches and logs. Default: the current directory.
DIRECTORY_VARIABLE = "TRTBUILD_WORKER_DIRECTORY"

#: Errors of this machine, of its store, or of a message that this release cannot read. Another worker may succeed.
_UNFIT = (UsageError, StoreError, InsufficientResources, OSError, ValueError)


def perform(text: str) -> str:
    """Do the job in `text`, and return the answer as text. A scheduler calls only this function."""
    return _answer(text, _worker_name()).to_text()


def _worker_name() -> str:
    from distributed import get_worker

    return str(get_worker().name)


def directory() -> Path:
    return Path(os.environ.get(DIRECTORY_VARIABLE) or ".").absolute()


def pool() -> WorkerPool:
    """The pool of the separate processes (rule 2) that compile and compare engines. All threads of this process use it."""
    with _pool_lock:
        return _only_pool()


_pool_lock = threading.Lock()


@functools.cache
def _only_pool() -> WorkerPool:
    return WorkerPool(wiring.store_root(directory()), directory())


def _answer(text: str, name: str) -> Answer:
    key = ""
    try:
        message = FarmJob.from_text(text)
        key = message.key
        _check(message)
        return _do_job(message, name)
    except Exception as error:
        return _answer_of_error(key, name, error)


def _answer_of_error(key: str, name: str, error: Exception) -> Answer:
    outcome: Outcome = "failed"
    if isinstance(error, WorkerDied):
        outcome = "died"
    elif isinstance(error, _UNFIT):
        outcome = "unfit"
    if isinstance(error, TrtbuildError):
        reported = error
    else:
        kind = EnvironmentFault if isinstance(error, _UNFIT) else InternalError
        reported = kind(f"{type(error).__name__}: {error}")
    return Answer(PROTOCOL, key, name, outcome, error=error_to_json(reported), log=reported.worker_log)


def _check(message: FarmJob) -> None:
    """Raise an error if this machine cannot do the job, or if the job contradicts its key."""
    job = message.job
    recipe = job.recipe if isinstance(job, ComparisonJob) else keys.engine(job, ENGINE_ENVIRONMENT)
    if recipe.key != message.key:
        raise EnvironmentFault(
            f"the job was sent with the key {message.key}, and this worker computes the key {recipe.key} for it",
            hint="use one release of trtbuild",
        )
    if isinstance(job, ComparisonJob):
        comparing.check(job)
        return
    target, planned = job.target, job.toolchain_version
    installed = table.installed_version(target.toolchain)
    if installed != planned:
        raise ToolchainMissing(f"the job needs {target.toolchain} {planned}; {installed} is installed here")
    table.check_target(target, job.settings, installed, devices=device_sms())


def _do_job(message: FarmJob, name: str) -> Answer:
    project = directory()
    configuration = wiring.load_configuration(project)
    store = wiring.open_store(project, configuration)
    try:
        exchange = exchanges(store, configuration).get(message.store)
        if exchange is None:
            raise EnvironmentFault("the store of the job is not configured here")
        with store.session():
            if isinstance(message.job, ComparisonJob):
                return comparing.compare_and_sign(
                    message, message.job, store.local, exchange, name, partial(call, pool())
                )
            recipe = keys.engine(message.job, ENGINE_ENVIRONMENT)
            answer = None if message.replace else _find_answer(message, recipe, store.local, exchange, name)
            return answer or _compile(message, message.job, recipe, store.local, exchange, name)
    finally:
        store.close()


def _find_answer(message: FarmJob, recipe: Recipe, local: LocalStore, exchange: Exchange, name: str) -> Answer | None:
    """The answer from a record that this machine has and trusts, or None."""
    found = read_complete_record(local, message.key)
    if found is None or not found.record.recipe.same_as(recipe):
        return None
    return _with_record(message, local, exchange, Answer(PROTOCOL, message.key, name, "done"))


def _compile(
    message: FarmJob, job: EngineJob, recipe: Recipe, local: LocalStore, exchange: Exchange, name: str
) -> Answer:
    exchange.receive(local, message.inputs)
    _refuse_missing_inputs(job, (blob.sha256 for blob in message.inputs))
    reply = call(pool(), "engine", job)
    local.put_record(Record(recipe, reply.outputs, provenance(reply)), replace=message.replace)
    answer = Answer(
        PROTOCOL,
        message.key,
        name,
        "done",
        log=reply.log,
        duration_s=reply.duration_s,
        peak_rss_bytes=reply.peak_rss_bytes,
    )
    return _with_record(message, local, exchange, answer)


def _refuse_missing_inputs(job: EngineJob, sent: Iterable[str]) -> None:
    """Raise EnvironmentFault if the blobs with the digests `sent` lack an input of the job."""
    needed = {job.onnx, *(weight.sha256 for weight in job.weights), *filter(None, [job.plugin_library])}
    if missing := needed - set(sent):
        raise EnvironmentFault(f"the job does not list its input {min(missing)}")


def _with_record(message: FarmJob, local: LocalStore, exchange: Exchange, answer: Answer) -> Answer:
    """Send the blobs of the job's record to the driver. Return `answer` with the record and its signatures."""
    found = read_complete_record(local, message.key)
    if found is None:
        raise RecordUntrusted(
            "this worker does not trust the record that it has written",
            hint="configure the worker's signing key as one of its trusted keys",
        )
    exchange.send(local, blob_files(local, found.files_by_blob))
    entry = found.entry({})
    return Answer(**{**vars(answer), "document": found.document.decode(), "entry": entry.to_bytes().decode()})
