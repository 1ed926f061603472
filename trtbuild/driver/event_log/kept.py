"""The events of the last `MOST_BUILDS` builds, in ``.trtbuild/builds``: one file of JSON lines for each build.

Only reports read the folder, so it may be deleted. Simultaneous builds write separate files. Errors of the disk are
ignored, because a log that cannot be written must not make a build fail.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from trtbuild.atomic import write_all
from trtbuild.driver.event_log.events import Event, ModelPlanned
from trtbuild.driver.event_log.lines import line_of

FOLDER = "builds"
#: The number of builds whose events are kept.
MOST_BUILDS = 5


class KeptEvents:
    """Writes the events of one build to a new file in the project's state directory (`state`).

    The file is created when the first model is planned, so a command in a directory without a manifest leaves no file.
    """

    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER
        self._waiting: list[Event] = []
        self._descriptor: int | None = None
        self._failed = False

    def write(self, event: Event) -> None:
        if self._failed:
            return
        try:
            if self._descriptor is None:
                self._waiting.append(event)
                if isinstance(event, ModelPlanned):
                    self._descriptor = self._create()
                    write_all(self._descriptor, b"".join(map(line_of, self._waiting)))
                    self._waiting.clear()
                return
            write_all(self._descriptor, line_of(event))
        except OSError:
            self._failed = True

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _create(self) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        for old in kept_builds(self._folder.parent)[MOST_BUILDS - 1 :]:
            with contextlib.suppress(OSError):
                old.unlink()
        name = f"{time.time_ns():020}-{os.getpid()}.jsonl"
        return os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)


def kept_builds(state: Path) -> list[Path]:
    """The files of the kept builds, the newest first."""
    try:
        return sorted((state / FOLDER).glob("*.jsonl"), reverse=True)
    except OSError:
        return []
