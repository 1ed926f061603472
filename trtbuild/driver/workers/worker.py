"""The child side of a worker process: one JSON job a line in, one JSON reply a line out.

Rules
1. Replies go over a copy of the original standard output. Descriptor 1 is then the log (standard error), and standard
   input is empty, so whatever user code or a compiler prints or reads cannot break the protocol.
2. A worker dies with its parent: the kernel is asked for that where it can (Linux), and the end of the job stream ends
   it everywhere.
3. An error of ours travels as its type and fields, anything else as a traceback. A worker never answers half a reply.
4. A trace worker loads torch and nothing of the user's; each job is done in a copy of it (`FORKS`), so that user code never
   meets what an earlier model left behind, and torch is imported once. It is forked while only the main thread runs
   Python. A copy that ends without a reply takes the worker with it, in the same way.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
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
from trtbuild.errors import SourceError, ToolchainError, TrtbuildError

Job = Mapping[str, Any]
Handler = Callable[[Job], dict[str, Any]]


def main(argv: list[str]) -> int:
    """``worker KIND STORE PROJECT``: serve jobs of one kind (trace, torch, engine) until the stream ends."""
    kind, store_root, project = argv
    jobs, replies = _take_over_streams()
    _die_with_parent()
    if _is_left(jobs):  # the parent died before the kernel could be asked: its last job is nobody's
        return 1
    if kind == "trace":
        faulthandler.enable()  # of a crash in native code that the model calls, the log then tells who called it
    if sys.path and sys.path[0] in ("", str(Path.cwd())):
        del sys.path[0]  # the project's files must not shadow installed modules
    handler = _prepared(kind, Path(store_root), Path(project)) if kind in ("trace", "torch") else None
    for line in jobs:
        if handler is None:
            handler = _handler(kind, Path(store_root), Path(project))
        if kind == "trace" and FORKS:
            _do_in_a_copy(handler, json.loads(line), replies)
            continue
        replies.write(json.dumps(_answer(handler, json.loads(line))) + "\n")
        replies.flush()
    return 0


def _prepared(kind: str, store_root: Path, project: Path) -> Handler | None:
    """The handler, with what it will need loaded before there is a job. None where that fails: a job then says why."""
    gc.disable()  # what is loaded is kept: looking through it for garbage, over and over, makes loading torch longer
    try:
        from trtbuild.driver.workers import handlers

        handler = _handler(kind, store_root, project)
        handlers.prepare(kind)
        return handler
    except Exception:
        return None
    finally:
        gc.freeze()  # nor is it done in a job; and a copy shares the pages that nothing writes to
        gc.enable()


def _do_in_a_copy(handler: Handler, job: Job, replies: TextIO) -> None:
    """Rule 4. Ends this process as the copy ended, where that gave no reply."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent, (reading, writing) = os.getpid(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os._exit(_copys_life(handler, job, replies, writing, parent))
    os.close(writing)
    has_replied = os.read(reading, 1) != b""
    os.close(reading)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if has_replied:
        return
    if code < 0:
        faulthandler.disable()  # the copy has told
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(parent, -code)
    os._exit(code if code >= 0 else 1)


def _copys_life(handler: Handler, job: Job, replies: TextIO, writing: int, parent: int) -> int:
    """All that a copy does; its exit status."""
    _die_with_parent()
    if os.getppid() != parent:
        return 1
    # a child that user code forks must not answer, nor keep the answer from ending
    os.register_at_fork(after_in_child=_Held((replies.fileno(), writing)).close)
    code = 0
    try:
        replies.write(json.dumps(_answer(handler, job)) + "\n")
        replies.flush()
        os.write(writing, b".")
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # user code may have put anything there
            stream.flush()
    return code


def _answer(handler: Handler, job: Job) -> dict[str, Any]:
    started = time.monotonic()
    _forget_peak()
    try:
        reply = {"ok": True, **handler(job)}
    except TrtbuildError as error:
        reply = {"ok": False, "error": describe(error)}
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        reply = {"ok": False, "error": {"type": "InternalError", "text": text, "trace": traceback.format_exc()}}
    reply["duration_s"] = time.monotonic() - started
    reply["peak_rss_bytes"] = peak_rss_bytes()
    return reply


def describe(error: TrtbuildError) -> dict[str, Any]:
    """An error as JSON; `trtbuild.driver.workers.pool` makes the same error of it again."""
    described: dict[str, Any] = {
        "type": type(error).__name__,
        "text": error.text,
        "file": error.file,
        "line": error.line,
        "hint": error.hint,
    }
    if isinstance(error, SourceError):
        described["code"] = error.code
    if isinstance(error, ToolchainError):
        described["nodes"] = list(error.nodes)
    return described


def _handler(kind: str, store_root: Path, project: Path) -> Handler:
    if kind == "original":
        from trtbuild.driver.workers import original

        return original.handler(project)
    if kind not in ("trace", "torch", "engine"):
        raise ValueError(f"no worker is called {kind!r}")
    from trtbuild.driver.project.wiring import TIMINGS
    from trtbuild.driver.workers import tasks
    from trtbuild.driver.workers.results import Context
    from trtbuild.store.local.local import LocalStore

    context = Context(LocalStore(store_root), project, project / TIMINGS)
    return lambda message: tasks.do(message, context)


def _forget_peak() -> None:
    """Have the kernel count this process's peak of memory from now on (proc(5), clear_refs)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_rss_bytes() -> int:
    """The most memory that this process had resident, since `_forget_peak` where the kernel can do that."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _take_over_streams() -> tuple[TextIO, TextIO]:
    jobs = os.fdopen(os.dup(0), "r", encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    return jobs, replies


def _is_left(jobs: TextIO) -> bool:
    """Whether nobody is there any more who could send a job."""
    watch = select.poll()
    watch.register(jobs.fileno(), 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in watch.poll(0))


class _Held:
    """Descriptors of this process, to be closed in the children that it forks, and there only once: a child may give their
    numbers to files of its own, which its own children then inherit."""

    def __init__(self, descriptors: Iterable[int]) -> None:
        self._held = [(descriptor, _file(descriptor)) for descriptor in descriptors]

    def close(self) -> None:
        while self._held:
            descriptor, file = self._held.pop()
            with contextlib.suppress(OSError):
                if _file(descriptor) == file:  # user code may have closed it, and its number be another file's
                    os.close(descriptor)


def _file(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _die_with_parent() -> None:
    if sys.platform == "linux":
        pr_set_pdeathsig = 1  # <linux/prctl.h>
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
