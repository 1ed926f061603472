"""What workers do: one table of tasks, and how a job goes to a worker and its result comes back.

Rules
1. A task is a step's stage, or ``verify`` or ``pt2``. `TASKS` names the kind of worker that does it, the type of its job,
   and for each form of a model the function that does it. The parent reads the first two, the child the third.
2. A job and its result are values on both sides, and JSON between them (`trtbuild.core.values.codec`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.planning.jobs import ConvertJob, LowerJob, PartitionJob
from trtbuild.core.values.codec import decode, encode
from trtbuild.driver.workers import graph_steps, handlers
from trtbuild.driver.workers.kinds import WorkerKind
from trtbuild.driver.workers.pool import WorkerPool
from trtbuild.driver.workers.results import Context, PT2Job, Reply, Result
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.verify.job import VerifyJob

#: The form of a PyTorch program. A job without a form is about a program.
_PROGRAM = "program"


@dataclass(frozen=True)
class Task:
    """`handlers` are by the form of the model (`trtbuild.core.model.spec.Source.form`); a job without one is a
    program's."""

    worker: WorkerKind
    job: type[Any]
    handlers: Mapping[str, Callable[[Any, Context], Result]]


TASKS: Mapping[str, Task] = {
    "trace": Task("trace", TraceJob, {_PROGRAM: handlers.trace}),
    "lower": Task("torch", LowerJob, {_PROGRAM: handlers.lower, **dict.fromkeys(graph_steps.FORMS, graph_steps.lower)}),
    "partition": Task(
        "torch", PartitionJob, {_PROGRAM: handlers.partition, **dict.fromkeys(graph_steps.FORMS, graph_steps.partition)}
    ),
    "convert": Task(
        "torch", ConvertJob, {_PROGRAM: handlers.convert, **dict.fromkeys(graph_steps.FORMS, graph_steps.convert)}
    ),
    "engine": Task("engine", EngineJob, {_PROGRAM: handlers.engine}),
    "verify": Task("torch", VerifyJob, {_PROGRAM: handlers.verify}),
    "pt2": Task("torch", PT2Job, {_PROGRAM: handlers.export_pt2}),
}


def call(pool: WorkerPool, task: str, job: Any) -> Reply:
    """Have a worker of `pool` do `task`. Raises the error that it met, or WorkerDied."""
    answer = pool.call(TASKS[task].worker, {"task": task, "job": encode(job)})
    return Reply(
        **vars(decode(Result, answer["result"])),
        duration_s=float(answer["duration_s"]),
        log=str(answer["log"]),
        peak_rss_bytes=answer["peak_rss_bytes"] if isinstance(answer["peak_rss_bytes"], int) else 0,
    )


def do(message: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """In a worker: the answer to a message of `call`."""
    task = TASKS[message["task"]]
    job = decode(task.job, message["job"])
    return {"result": encode(task.handlers[getattr(job, "form", _PROGRAM)](job, context))}
