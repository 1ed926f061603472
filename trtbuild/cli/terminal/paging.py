"""Show a long result in a pager, as git does.

Rules
1. A result is paged if standard output is a terminal that is too small for the result and the next prompt.
2. The pager is ``$PAGER``, or ``less`` by default. An empty ``$PAGER``, ``PAGER=cat`` and ``TERM=dumb`` turn paging off.
3. If ``$LESS`` is not set, the pager gets ``LESS=FRX``: ``less`` shows colours, and leaves the text on the screen.
4. If the pager is not installed or does not start, or if ``$PAGER`` has an open quote, the result is printed. A pager that
   ends early is not an error.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping

import click


def pager_command(text: str, environment: Mapping[str, str] = os.environ) -> list[str] | None:
    """The words of the pager's command; None if `text` is printed without a pager."""
    if not sys.stdout.isatty() or environment.get("TERM") == "dumb":
        return None
    terminal_size = shutil.get_terminal_size()
    if _row_count(text, terminal_size.columns) < terminal_size.lines:
        return None
    try:
        words = shlex.split(environment.get("PAGER", "less"))
    except ValueError:  # an open quote
        return None
    if not words or words == ["cat"] or shutil.which(words[0]) is None:
        return None
    return words


def _row_count(text: str, columns: int) -> int:
    """The number of terminal rows that `text` takes. A line longer than `columns` takes several rows."""
    from rich.cells import cell_len

    return sum(max(1, math.ceil(cell_len(click.unstyle(line)) / columns)) for line in text.splitlines())


def page(text: str, command: list[str]) -> bool:
    """Show `text` in a pager, and wait until the pager ends. Return whether the pager was started."""
    environment = {**os.environ, "LESS": os.environ.get("LESS", "FRX")}
    encoding = sys.stdout.encoding or "utf-8"
    try:
        pager = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
    except OSError:
        return False
    with _ignored_interrupts():
        with contextlib.suppress(OSError):  # the user has left the pager early
            pager.communicate(text.encode(encoding, "replace"))
        pager.wait()
    return True


@contextlib.contextmanager
def _ignored_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C in this block, because the pager handles it."""
    earlier = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, earlier)
