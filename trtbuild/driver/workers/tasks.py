"""The table of worker tasks, and the functions that send a job to a worker and read its result.

Rules
1. `TASKS` maps the name of a task to its `Task`. The parent process reads the kind of worker from it. The child process
   reads the type of the job and the function that does the job. Each stage except ``package`` has a task.
2. A task with the ending ``-with-operators`` is for models that call operators from outside PyTorch, and imports the code
   of these operators.
3. Jobs and results are dataclasses in both processes, and JSON between them (`trtbuild.core.values.codec`).
4. A job has the parent's versions of the steps. A worker with other versions refuses the job: trtbuild was upgraded, or
   another commit was checked out, after the parent had started. Otherwise the parent would store the result under the key
   of another version.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.model.graph_kinds import GRAPH_KINDS
from trtbuild.core.planning.jobs import ConvertJob, LowerJob, PartitionJob
from trtbuild.core.recipes.keys import STEP_VERSIONS
from trtbuild.core.recipes.record import Output
from trtbuild.core.values.codec import decode, encode
from trtbuild.driver.gpu_comparisons.job import ComparisonJob
from trtbuild.driver.workers import graph_steps, handlers
from trtbuild.driver.workers.forking.owner import lent_servers
from trtbuild.driver.workers.forking.preloading import PreloadRequest
from trtbuild.driver.workers.forking.requests import MOST_MESSAGE_BYTES
from trtbuild.driver.workers.kinds import NO_IMPORTS, WorkerKind
from trtbuild.driver.workers.pool import WorkerPool
from trtbuild.driver.workers.results import Context, PT2Job, Reply, Result
from trtbuild.errors import EnvironmentFault
from trtbuild.stages.trace.calibration.job import CalibrateJob
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.user_code.leading_imports import leading_imports
from trtbuild.stages.verify.job import VerifyJob

Handler = Callable[[Any, Context], Result]


@dataclass(frozen=True)
class Task:
    """A task: the kind of worker, the type of its jobs, and the function that does a job.

    For graphs of a kind that is not lowered (ONNX models and TensorRT networks), the function is `unlowered`, if it is
    given. Otherwise the function is `handler`.
    """

    worker: WorkerKind
    job: type[Any]
    handler: Handler
    unlowered: Handler | None = None

    def do(self, job: Any, context: Context) -> Result:
        if self.unlowered is None or GRAPH_KINDS[job.graph_kind].is_lowered:
            return self.handler(job, context)
        return self.unlowered(job, context)


TASKS: Mapping[str, Task] = {
    "calibrate": Task("trace", CalibrateJob, handlers.calibrate),
    "trace": Task("trace", TraceJob, handlers.trace),
    "lower": Task("torch", LowerJob, handlers.lower, graph_steps.lower),
    "partition": Task("torch", PartitionJob, handlers.partition, graph_steps.partition),
    "convert": Task("torch", ConvertJob, handlers.convert, graph_steps.convert),
    "engine": Task("engine", EngineJob, handlers.engine),
    "explain": Task("torch", LowerJob, handlers.explain),
    "compare-engines": Task("comparison", ComparisonJob, handlers.compare_engines),
    "verify": Task("torch", VerifyJob, handlers.verify),
    "verify-with-operators": Task("trace", VerifyJob, handlers.verify_with_operators),
    "pt2": Task("torch", PT2Job, handlers.export_pt2),
    "pt2-with-operators": Task("trace", PT2Job, handlers.export_pt2_with_operators),
}


def call(
    pool: WorkerPool,
    task: str,
    job: Any,
    gpu: int | None = None,
    on_announced: Callable[[Mapping[str, Output]], None] = lambda outputs: None,
) -> Reply:
    """Do `task` in a worker of `pool`. `on_announced` receives the outputs that the task announces before it checks them.

    `gpu` is the number of the only GPU that an engine worker sees; None: all GPUs. Raises the error that the worker
    reports, or WorkerDied.
    """
    message = {"task": task, "job": encode(job), "step versions": dict(STEP_VERSIONS)}
    loads_plugins = isinstance(job, EngineJob) and job.plugin_library is not None
    imports = _imports(job, pool.project) if isinstance(job, TraceJob) else NO_IMPORTS
    answer = pool.call(
        TASKS[task].worker,
        message,
        alone=loads_plugins,
        gpu=gpu,
        imports=imports,
        on_announced=lambda outputs: on_announced({name: decode(Output, output) for name, output in outputs.items()}),
    )
    return Reply(
        **vars(decode(Result, answer["result"])),
        duration_s=float(answer["duration_s"]),
        log=str(answer["log"]),
        peak_rss_bytes=answer["peak_rss_bytes"] if isinstance(answer["peak_rss_bytes"], int) else 0,
    )


def _imports(job: TraceJob, project: Path) -> bytes:
    """Return the `PreloadRequest` of a trace as bytes, or `NO_IMPORTS`.

    There is no request if no process keeps libraries between builds, if the source does not begin with imports of libraries
    (`leading_imports`), or if the request is too long for a message."""
    leading = leading_imports(job.source, os.path.realpath(project)) if lent_servers() is not None else None
    if leading is None:
        return NO_IMPORTS
    request = PreloadRequest(job.source.roots, leading.statements).to_bytes()
    return request if len(request) <= MOST_MESSAGE_BYTES else NO_IMPORTS


def do(message: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Do the job in a message of `call`, in a worker. Return the part ``{"result": …}`` of the reply.

    Raises EnvironmentFault if the parent has other versions of the steps (rule 4)."""
    task = TASKS[message["task"]]
    if message.get("step versions") != STEP_VERSIONS:
        raise EnvironmentFault(
            "another release of trtbuild was installed while this command ran",
            hint="run the command again; on a worker of a scheduler, start trtbuild worker again",
        )
    job = decode(task.job, message["job"])
    return {"result": encode(task.do(job, context))}
