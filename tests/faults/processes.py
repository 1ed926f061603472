"""The state and the descendants of processes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path


def state(pid: int) -> tuple[str, int] | None:
    """The state letter and the parent of a process, or None if the process does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0], int(fields[1])


def alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not run."""
    status = state(pid)
    return status is not None and status[0] not in "ZX"


def descendants(root: int) -> list[int]:
    """All running descendants of `root`, parents before their children."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        status = state(int(entry.name)) if entry.name.isdigit() else None
        if status is not None and status[0] not in "ZX":
            children.setdefault(status[1], []).append(int(entry.name))
    below: list[int] = []
    generation = [root]
    while generation:
        generation = [child for parent in generation for child in children.get(parent, [])]
        below += generation
    return below


def kill(pids: Iterable[int], sent: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to processes. Processes that have ended are ignored."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sent)


def wait_until_gone(pids: Iterable[int], within_s: float = 20.0) -> None:
    """Fail unless all of `pids` end within `within_s` seconds."""
    deadline = time.monotonic() + within_s
    running = list(pids)
    while running := [pid for pid in running if alive(pid)]:
        if time.monotonic() > deadline:
            raise AssertionError(f"still running after {within_s} s: {running}")
        time.sleep(0.005)
