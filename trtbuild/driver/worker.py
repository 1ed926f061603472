"""The child side of a worker process: one JSON job a line in, one JSON reply a line out.

Rules
1. Replies go over a copy of the original standard output. Descriptor 1 is then the log (standard error), and standard
   input is empty, so whatever user code or a compiler prints or reads cannot break the protocol.
2. A worker dies with its parent: the kernel is asked for that where it can (Linux), and the end of the job stream ends
   it everywhere.
3. An error of ours travels as its type and fields, anything else as a traceback. A worker never answers half a reply.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from trtbuild.errors import SourceError, TrtbuildError

Job = Mapping[str, Any]
Handler = Callable[[Job], dict[str, Any]]


def main(argv: list[str]) -> int:
    """``worker KIND STORE PROJECT``: serve jobs of one kind (trace, torch, engine) until the stream ends."""
    kind, store_root, project = argv
    jobs, replies = _take_over_streams()
    _die_with_parent()
    if sys.path and sys.path[0] in ("", str(Path.cwd())):
        del sys.path[0]  # the project's files must not shadow installed modules
    handler: Handler | None = None
    for line in jobs:
        if handler is None:
            handler = _handler(kind, Path(store_root), Path(project))
        replies.write(json.dumps(_answer(handler, json.loads(line))) + "\n")
        replies.flush()
    return 0


def _answer(handler: Handler, job: Job) -> dict[str, Any]:
    started = time.monotonic()
    try:
        reply = {"ok": True, **handler(job)}
    except TrtbuildError as error:
        reply = {"ok": False, "error": describe(error)}
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        reply = {"ok": False, "error": {"type": "InternalError", "text": text, "trace": traceback.format_exc()}}
    reply["duration_s"] = time.monotonic() - started
    return reply


def describe(error: TrtbuildError) -> dict[str, Any]:
    """An error as JSON; `trtbuild.driver.workers` makes the same error of it again."""
    described: dict[str, Any] = {
        "type": type(error).__name__,
        "text": error.text,
        "file": error.file,
        "line": error.line,
        "hint": error.hint,
    }
    if isinstance(error, SourceError):
        described["code"] = error.code
    return described


def _handler(kind: str, store_root: Path, project: Path) -> Handler:
    from trtbuild.driver import wiring

    return wiring.handler(kind, store_root, project)


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


def _die_with_parent() -> None:
    if sys.platform == "linux":
        pr_set_pdeathsig = 1  # <linux/prctl.h>
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
