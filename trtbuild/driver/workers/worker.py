"""The child's side of a worker process. It reads jobs and writes replies: JSON, one on each line.

Rules
1. Replies are written to a duplicate of the original standard output. Descriptor 1 itself becomes the log (standard error),
   and standard input becomes empty. So user code and compilers can print and read without breaking the protocol.
2. A worker ends when its parent ends, because the stream of jobs then ends. On Linux, the kernel ends it at once.
3. A TrtbuildError is sent as its type and fields, and any other exception as a traceback. UnfitLibraries is not an error
   for the user. It means that the job needs a process with other imports, so the parent calls another worker.
4. A trace worker loads torch, but no user code. If `FORKS`, it does each job in a forked child. So torch is imported once,
   and a model's code cannot affect the next model. The worker forks while only its main thread runs Python. If the child
   ends without a reply, the worker ends with the same status or signal.
5. Before the reply, a job may write one line with outputs that it has not checked yet (`Context.announce`).
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import gc
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from trtbuild.driver.workers.kinds import FORKS
from trtbuild.errors import SourceError, ToolchainError, ToolchainMissing, TrtbuildError
from trtbuild.stages.trace.user_code.leading_imports import UnfitLibraries

Job = Mapping[str, Any]
Handler = Callable[[Job], dict[str, Any]]


def main(argv: list[str]) -> int:
    """``worker KIND STORE PROJECT``: serve jobs of one kind (`WorkerKind`) until the stream ends."""
    kind, store_root, project = argv
    jobs, replies = _take_over_streams()
    end_with_parent()
    if _parent_has_ended(jobs):  # before `end_with_parent`
        return 1
    if kind == "trace":
        faulthandler.enable()  # after a crash in native code, the log shows the Python stack
    if sys.path and sys.path[0] in ("", str(Path.cwd())):
        del sys.path[0]  # the project's files must not shadow installed modules
    prepares = kind in ("trace", "torch", "engine")
    handler = _prepared_handler(kind, Path(store_root), Path(project), replies) if prepares else None
    for line in jobs:
        if handler is None:
            handler = _prepared_handler(kind, Path(store_root), Path(project), replies)
        if kind == "trace" and FORKS:
            _do_in_fork(handler, json.loads(line), replies)
            continue
        replies.write(json.dumps(_answer(handler, json.loads(line))) + "\n")
        replies.flush()
    return 0


def _prepared_handler(kind: str, store_root: Path, project: Path, replies: TextIO) -> Handler:
    """Load the libraries of the handler, and return it. If that fails, return a function that raises the error."""
    gc.disable()  # imported modules are not garbage, so collections would only slow down the import of torch
    try:
        from trtbuild.driver.workers import handlers

        handler = job_handler(kind, store_root, project, replies)
        handlers.prepare(kind)
        return handler
    except Exception as error:
        return functools.partial(_raise_error_of_loading, error)
    finally:
        gc.freeze()  # later collections skip these objects, and forked children share their pages
        gc.enable()


def _raise_error_of_loading(error: Exception, job: Job) -> dict[str, Any]:
    """The handler of a worker that could not load its libraries: it raises `error`, which has nothing to do with the job.

    torch raises an OSError if one of its shared libraries is missing."""
    if not isinstance(error, ImportError | OSError):
        raise error
    traceback.print_exception(error)
    raise ToolchainMissing(
        f"a library cannot be imported: {type(error).__name__}: {error}",
        hint="trtbuild doctor shows what is wrong with the installation",
    ) from error


def _do_in_fork(handler: Handler, job: Job, replies: TextIO) -> None:
    """Do a job in a forked child (rule 4). Without a reply, end this process with the child's status or signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent, (read_end, write_end) = os.getpid(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        os._exit(_run_child(handler, job, replies, write_end, parent))
    os.close(write_end)
    has_replied = os.read(read_end, 1) != b""
    os.close(read_end)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if has_replied:
        return
    if code < 0:
        faulthandler.disable()  # the child has already written the stack to the log
        if -code not in (signal.SIGKILL, signal.SIGSTOP):  # their handlers cannot be changed
            signal.signal(-code, signal.SIG_DFL)
        os.kill(parent, -code)
    os._exit(code if code >= 0 else 1)


def _run_child(handler: Handler, job: Job, replies: TextIO, reply_pipe: int, parent: int) -> int:
    """Do a job in the forked child, and return its exit status.

    After the reply, the child writes one byte to `reply_pipe`, so that the parent knows that it has replied.
    """
    end_with_parent()
    if os.getppid() != parent:
        return 1
    # processes that user code forks must neither write to the reply pipes nor keep them open
    os.register_at_fork(after_in_child=_DescriptorsToClose((replies.fileno(), reply_pipe)).close)
    code = 0
    try:
        replies.write(json.dumps(_answer(handler, job)) + "\n")
        replies.flush()
        os.write(reply_pipe, b".")
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # user code may have replaced the stream by any object
            stream.flush()
    return code


def _answer(handler: Handler, job: Job) -> dict[str, Any]:
    started = time.monotonic()
    _reset_peak_rss()
    try:
        reply = {"ok": True, **handler(job)}
    except TrtbuildError as error:
        reply = {"ok": False, "error": error_to_json(error)}
    except UnfitLibraries:
        reply = {"ok": False, "unfit": True}
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        reply = {"ok": False, "error": {"type": "InternalError", "text": text, "trace": traceback.format_exc()}}
    reply["duration_s"] = time.monotonic() - started
    reply["peak_rss_bytes"] = peak_rss_bytes()
    return reply


def error_to_json(error: TrtbuildError) -> dict[str, Any]:
    """Return an error as JSON. `trtbuild.driver.workers.worker_process.error_from_json` reads it."""
    fields: dict[str, Any] = {
        "type": type(error).__name__,
        "text": error.text,
        "file": error.file,
        "line": error.line,
        "hint": error.hint,
    }
    if isinstance(error, SourceError):
        fields["code"] = error.code
        fields["field"] = error.field
    if isinstance(error, ToolchainError):
        fields["nodes"] = list(error.nodes)
    return fields


def job_handler(kind: str, store_root: Path, project: Path, replies: TextIO) -> Handler:
    """Load the modules for a worker's jobs, and return the function that does the jobs. Announced outputs go to `replies`.

    Raises ValueError for an unknown kind."""
    if kind == "original":
        from trtbuild.driver.workers import original

        return original.handler(project)
    if kind not in ("trace", "torch", "engine", "comparison"):
        raise ValueError(f"there is no kind of worker {kind!r}")
    from trtbuild.core.recipes.record import Output
    from trtbuild.core.values.codec import encode
    from trtbuild.driver.project.folders import TIMING_FOLDER
    from trtbuild.driver.workers import tasks
    from trtbuild.driver.workers.results import Context
    from trtbuild.store.local.local import LocalStore

    def announce(outputs: Mapping[str, Output]) -> None:
        replies.write(json.dumps({"announced": encode(outputs)}) + "\n")
        replies.flush()

    context = Context(LocalStore(store_root), project, project / TIMING_FOLDER, announce)
    return lambda message: tasks.do(message, context)


def _reset_peak_rss() -> None:
    """Reset the kernel's record of this process's memory peak (proc(5), clear_refs)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_rss_bytes() -> int:
    """Return the peak of this process's resident memory in bytes.

    It is the peak since `_reset_peak_rss` or, if the kernel does not support the reset, since the start of the process.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _take_over_streams() -> tuple[TextIO, TextIO]:
    """Return the stream of jobs and the stream of replies, and replace the standard streams (rule 1)."""
    jobs = os.fdopen(os.dup(0), "r", encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    empty_input = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty_input, 0)
    os.close(empty_input)
    os.dup2(2, 1)
    replace_streams()
    return jobs, replies


@functools.cache
def replace_streams() -> None:
    """Replace Python's input and output by streams of the descriptors 0 and 1.

    A second call, even in a fork, keeps these streams, because libraries may have stored references to them."""
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)


def _parent_has_ended(jobs: TextIO) -> bool:
    watch = select.poll()
    watch.register(jobs.fileno(), 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in watch.poll(0))


class _DescriptorsToClose:
    """Descriptors of this process that its forked children close.

    A child closes each descriptor only once. The children of that child do not close it again, because a new file may then
    have the same number.
    """

    def __init__(self, descriptors: Iterable[int]) -> None:
        self._still_open = [(descriptor, _file_id(descriptor)) for descriptor in descriptors]

    def close(self) -> None:
        while self._still_open:
            descriptor, file = self._still_open.pop()
            with contextlib.suppress(OSError):
                if _file_id(descriptor) == file:  # otherwise user code has closed it, and the number is another file's
                    os.close(descriptor)


def _file_id(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def end_with_parent() -> None:
    """On Linux, let the kernel end this process when the thread that has started it ends."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1  # <linux/prctl.h>
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
