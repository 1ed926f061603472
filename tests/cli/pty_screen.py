"""A pseudo-terminal for tests and for the documentation. The output of commands is read from an emulated screen (pyte)."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyte


@dataclass
class Screen:
    """A terminal. `run` may be called several times: all commands write to the same screen."""

    columns: int = 80
    rows: int = 24
    #: All bytes that were written, with control sequences.
    written: bytes = b""
    status: int = 0
    _screen: pyte.HistoryScreen = field(init=False)
    _stream: pyte.ByteStream = field(init=False)

    def __post_init__(self) -> None:
        self._screen = pyte.HistoryScreen(self.columns, self.rows, history=10_000, ratio=0.5)
        self._stream = pyte.ByteStream(self._screen)

    def run(
        self,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        *,
        watch: Callable[[Screen, subprocess.Popen[bytes]], None] | None = None,
        timeout_s: float = 240,
    ) -> int:
        """Run a command to its end, and return the exit code. `watch` is called after each output."""
        parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", self.rows, self.columns, 0, 0))
        process = subprocess.Popen(
            command,
            cwd=directory,
            env={"PAGER": "cat", **environment},  # the pager `less` would wait for a key
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
        )
        os.close(child)
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{command} ran longer than {timeout_s} s\n{self.text()}")
                if not select.select([parent], [], [], 1.0)[0]:
                    continue
                try:
                    data = os.read(parent, 65536)
                except OSError:  # Linux raises EIO when the command has closed the terminal
                    data = b""
                if not data:
                    break
                self.feed(data)
                if watch is not None:
                    watch(self, process)
            self.status = process.wait(timeout=30)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            os.close(parent)
        return self.status

    def feed(self, data: bytes) -> None:
        self.written += data
        self._stream.feed(data)

    def lines(self) -> list[str]:
        """Return all lines, including the lines that have scrolled out of sight."""
        return [_text(row, self.columns) for row in self.cells()]

    def text(self) -> str:
        """Return `lines` as text, without empty lines at the end."""
        return "\n".join(self.lines()).rstrip()

    def cells(self) -> list[Mapping[int, pyte.screens.Char]]:
        """Return rows of cells: first the rows that have scrolled out of sight, then the visible rows."""
        return [*self._screen.history.top, *(self._screen.buffer[row] for row in range(self.rows))]

    @property
    def cursor_column(self) -> int:
        return int(self._screen.cursor.x)


def _text(row: Mapping[int, pyte.screens.Char], columns: int) -> str:
    return "".join(row[column].data for column in range(columns)).rstrip()
