"""JSON lines of events: writing them to a file while a build runs, and reading them.

Each event is one write of one complete line. So after ``kill -9``, only the last line can be incomplete. Readers ignore
an incomplete line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from trtbuild.atomic import write_all
from trtbuild.core.values.codec import decode, encode
from trtbuild.driver.event_log.events import KINDS, Event
from trtbuild.errors import UsageError
from trtbuild.regular import read_regular


class Sink(Protocol):
    """Receives the events of a build, one after the other. Its methods raise no exceptions."""

    def write(self, event: Event) -> None:
        """Receive the next event."""

    def close(self) -> None:
        """The build has ended: no event follows this call."""


class EventFile:
    """Writes events to the file of ``--events``. Raises UsageError if the file cannot be created.

    If writing fails later, `report_error` is called once, and no further events are written.
    """

    def __init__(self, path: str, report_error: Callable[[str], None]) -> None:
        self._path, self._report_error = path, report_error
        try:
            self._descriptor: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise UsageError(
                f"--events {path}: the file cannot be written: {error.strerror or error}",
                hint="name a file in a writable directory",
            ) from error

    def write(self, event: Event) -> None:
        if self._descriptor is None:
            return
        try:
            write_all(self._descriptor, line_of(event))
        except OSError as error:
            self._report_error(f"the events could not be written to {self._path}: {error.strerror or error}")
            self.close()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def line_of(event: Event) -> bytes:
    """The JSON line of an event, with its line break."""
    return json.dumps(encode(event), separators=(",", ":")).encode() + b"\n"


def read_events(path: str | Path) -> list[Event]:
    """The events of a file, without incomplete lines and unknown events. Raises OSError."""
    events = []
    for line in read_regular(path).split(b"\n"):
        try:
            data = json.loads(line)
            events.append(decode(KINDS[data["event"]], data))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return events
