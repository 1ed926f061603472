"""Write a report at the end of a build (``build --report``), or later (``trtbuild report``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trtbuild.atomic import replace_file
from trtbuild.driver.event_log.events import Event
from trtbuild.driver.event_log.kept import kept_builds
from trtbuild.driver.event_log.lines import read_events
from trtbuild.driver.project.folders import STATE_FOLDER
from trtbuild.driver.reports.documents import Report, Status
from trtbuild.driver.reports.making import make_report
from trtbuild.errors import UsageError

#: Returns the page of a report.
Render = Callable[[Report], str]


@dataclass(frozen=True, kw_only=True)
class WrittenReport:
    """The file of a report, and the build that it shows. `kept_builds` is the number of builds whose events are kept."""

    schema: Literal["trtbuild.report/1"] = "trtbuild.report/1"
    ok: bool = True
    path: str
    size: int
    started: str
    status: Status
    kept_builds: int


class ReportFile:
    """Collects the events of a build, and writes its report to `path` when the build ends, with or without an error.

    The constructor raises UsageError if `path` cannot be written. If the report cannot be made at the end, only
    `report_error` is called with a message.
    """

    def __init__(self, path: str, project: Path, render: Render, report_error: Callable[[str], None]) -> None:
        self._path = Path(path).absolute()
        check_writable(self._path, f"--report {path}")
        self._project, self._render, self._report_error = project.absolute(), render, report_error
        self._events: list[Event] = []
        self._before = _events_of(self._project, 0)

    def write(self, event: Event) -> None:
        self._events.append(event)

    def close(self) -> None:
        try:
            page = self._render(make_report(self._project, self._events, self._before))
            replace_file(self._path, page.encode("utf-8", "replace"))
        except Exception as error:  # a bug of the report must not make the build fail
            self._report_error(f"the report could not be written to {self._path}: {type(error).__name__}: {error}")


def write_report(project: Path, path: str, number: int, render: Render) -> WrittenReport:
    """Write the report of a kept build: the last one if `number` is 1, the one before it if `number` is 2.

    Raises UsageError if there is no such build, or if `path` cannot be written.
    """
    project, target = project.absolute(), Path(path).absolute()
    check_writable(target, f"-o {path}")
    builds = kept_builds(project / STATE_FOLDER)
    if not builds:
        raise UsageError(f"no build is kept in {STATE_FOLDER}/builds", hint="trtbuild build")
    if not 1 <= number <= len(builds):
        raise UsageError(
            f"there is no build number {number}: {STATE_FOLDER}/builds has {len(builds)} builds",
            hint=f"choose a number from 1 (the last build) to {len(builds)}",
        )
    report = make_report(project, _events_of(project, number - 1), _events_of(project, number))
    page = render(report).encode("utf-8", "replace")
    try:
        replace_file(target, page)
    except OSError as error:
        raise UsageError(f"-o {path}: the file cannot be written: {error.strerror or error}") from error
    return WrittenReport(
        path=path, size=len(page), started=report.started, status=report.status, kept_builds=len(builds)
    )


def check_writable(path: Path, flag: str) -> None:
    """Raise UsageError if `path`, which `flag` names, cannot be created or replaced as a file."""
    if (path.exists() and not path.is_file()) or not os.access(path.parent, os.W_OK):
        raise UsageError(f"{flag}: the file cannot be written", hint="name a file in a writable directory")


def _events_of(project: Path, index: int) -> Sequence[Event]:
    """The events of the kept build `index` (0 is the newest one); empty if there is no such build."""
    builds = kept_builds(project / STATE_FOLDER)
    try:
        return read_events(builds[index]) if index < len(builds) else []
    except OSError:
        return []
