"""The worker pool, which starts, calls, reuses and ends worker processes (`worker_process`).

Rules
1. Workers are reused, with these exceptions:
   * A trace worker does each job in a forked child, because one model's code must not affect the next model. Where it
     cannot fork, it does only one job.
   * An ``original`` worker, which times the model in PyTorch, serves one model only, for the same reason.
   * A comparison worker loads the engines of one package only.
   * An engine worker that loads a library of plugins compiles one engine only, because the library cannot be unloaded.

   Trace and torch workers are forked from one process, so torch is loaded only once (`forking`). The first torch worker is
   started together with the first trace, if the machine has several processors.
2. Environment variables:
   * A trace worker inherits the user's variables, but it sees no GPU, and its hash seed is fixed.
   * Torch and comparison workers get the same variables, but see the GPUs. A comparison worker runs engines on them. A
     torch worker runs the parser, and the parser of `tensorrt` needs a GPU.
   * An ``original`` worker sees the GPUs, too, but gets no fixed hash seed.
   * An engine worker gets only `ENGINE_ENVIRONMENT`, which is in the engine's key, and `INHERITED`, which is in no key. It
     does not get ``LD_PRELOAD`` and ``LD_AUDIT``, which load other code into a process. The code that loads TensorRT
     compares the loaded library with the planned one (`trtbuild.toolchain.libraries.mapped`). If an engine is built for
     one GPU, its worker sees only this GPU, and compiles only engines for it.
3. If a worker dies, its job fails. The error contains the end of its log. The next job gets a new worker.
4. Each worker runs in a separate session, so Ctrl-C reaches the driver only. The driver then ends the workers.
5. No worker gets the variables that only the driver needs (`HIDDEN_PREFIXES`): the signing key, the remotes, the scheduler,
   and credentials. Workers other than engine workers get all other variables, because a model's code may need them
   (``HF_TOKEN``, ``AWS_…``). The code runs as the user who builds the model.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtbuild.driver.workers.forking.lending import ServersOfBuild, ServerSource
from trtbuild.driver.workers.forking.owner import FORKED_KINDS, ForkServers
from trtbuild.driver.workers.kinds import FORKS, NO_IMPORTS, WorkerKind
from trtbuild.driver.workers.worker_process import OnAnnounced, Worker, WorkerDied
from trtbuild.errors import TrtbuildError
from trtbuild.stages.trace.user_code.leading_imports import UnfitLibraries

#: Whether the pool keeps a worker of this kind for another job (rule 1).
_IS_REUSED: Mapping[WorkerKind, bool] = {
    "trace": FORKS,
    "torch": True,
    "engine": True,
    "comparison": False,
    "original": False,
}


class WorkerPool:
    """Starts workers on demand, and keeps idle ones by kind, GPU and imports. Thread-safe.

    `source` lends the servers from which workers are forked. Default: `ServersOfBuild`."""

    def __init__(self, store_root: Path, project: Path, source: ServerSource | None = None) -> None:
        self._source: ServerSource = source or ServersOfBuild()
        self._store_root = store_root
        self.project = project
        self._idle: dict[tuple[WorkerKind, int | None, bytes], list[Worker]] = {}
        self._busy: set[Worker] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._servers: ForkServers | None = None

    def call(
        self,
        kind: WorkerKind,
        job: Mapping[str, Any],
        *,
        alone: bool = False,
        gpu: int | None = None,
        imports: bytes = NO_IMPORTS,
        on_announced: OnAnnounced = lambda outputs: None,
    ) -> dict[str, Any]:
        """Do one job in a worker of `kind`, and return the reply. With `alone`, the worker does no other job.

        `gpu` is the number of the only GPU that an engine worker sees. `imports` names libraries that a trace worker should
        have imported before (`PreloadRequest`). If these libraries do not fit the job, another worker does it.
        `on_announced` receives the outputs that the worker announces before its reply. Raises TrtbuildError."""
        worker = self._take(kind, gpu, imports, new=alone)
        is_reused = _IS_REUSED[kind] and not alone
        if kind == "trace":
            self.prepare("torch")
        try:
            reply = worker.call(job, on_announced)
        except UnfitLibraries:
            self._give_back(worker, reusable=False)
            return self.call(kind, job, alone=alone, gpu=gpu, on_announced=on_announced)
        except TrtbuildError:
            self._give_back(worker, reusable=is_reused and worker.is_alive)
            raise
        except BaseException:
            self._give_back(worker, reusable=False)
            raise
        self._give_back(worker, reusable=is_reused)
        return reply

    def close(self, *, kill: bool = False) -> None:
        """End all idle workers, and with `kill` also the busy ones."""
        with self._lock:
            self._closed = True
            idle = [worker for workers in self._idle.values() for worker in workers]
            busy = list(self._busy)
            self._idle = {}
            servers, self._servers = self._servers, None  # a second call must not give them back again
        for worker in busy if kill else []:
            worker.kill()
        for worker in idle:
            worker.kill()
            worker.end()
        if servers is not None:
            self._source.give_back(servers)

    def _take(self, kind: WorkerKind, gpu: int | None, imports: bytes, *, new: bool) -> Worker:
        with self._lock:
            if self._closed:
                raise WorkerDied("the build was interrupted")
            idle = self._idle.get((kind, gpu, imports))
            worker = idle.pop() if idle and not new else None
            if worker is not None and not worker.is_alive:
                worker.end()
                worker = None
            worker = worker or self._start(kind, gpu, imports)
            self._busy.add(worker)
            return worker

    def _start(self, kind: WorkerKind, gpu: int | None = None, imports: bytes = NO_IMPORTS) -> Worker:
        if kind in FORKED_KINDS and (self._servers is None or not self._servers.is_alive):
            servers, self._servers = self._servers, None
            if servers is not None:
                self._source.give_back(servers)
            self._servers = self._source.borrow(self.project)
        servers = self._servers if kind in FORKED_KINDS else None
        return Worker(kind, self._store_root, self.project, gpu, servers, imports)

    def prepare(self, kind: WorkerKind) -> None:
        """Start a worker of `kind` unless one exists, so that it loads its libraries before it is needed.

        The worker sees all GPUs. On a machine with one processor, this method does nothing."""
        with self._lock:
            exists = self._idle.get((kind, None, NO_IMPORTS)) or any(worker.kind == kind for worker in self._busy)
            if not self._closed and not exists and (os.cpu_count() or 1) > 1:
                with contextlib.suppress(OSError):  # the error is reported when the worker is needed
                    self._keep(self._start(kind))

    def _give_back(self, worker: Worker, *, reusable: bool) -> None:
        with self._lock:
            self._busy.discard(worker)
            if reusable and not self._closed:
                self._keep(worker)
                return
        worker.end()

    def _keep(self, worker: Worker) -> None:
        self._idle.setdefault((worker.kind, worker.gpu, worker.imports), []).append(worker)
