"""The output of a command: its result on standard output, errors and progress on standard error."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trtbuild.cli.commands.options import request
from trtbuild.cli.terminal import terminal
from trtbuild.core.values.codec import encode
from trtbuild.errors import (
    ConfigurationErrors,
    FrozenError,
    InterruptError,
    ManifestErrors,
    TrtbuildError,
    UsageError,
)

if TYPE_CHECKING:
    from trtbuild.driver.answers.documents import Build, Failure
    from trtbuild.driver.building.progress.events import Watcher

Document = TypeVar("Document")
#: The values of the common flags, by the names of their parameters (`trtbuild.cli.commands.options`).
Flags = dict[str, Any]


def document(flags: Flags, result: Document, to_lines: Callable[[Document], list[str]]) -> None:
    """Write a command's result to standard output. `to_lines` is the function of `trtbuild.cli.screens` for its text."""
    terminal.write_result(text(flags, result, to_lines))


def paged(flags: Flags, result: Document, to_lines: Callable[[Document], list[str]]) -> None:
    """Write a command's result like `document`, but through a pager if it is longer than the terminal."""
    from trtbuild.cli.terminal import paging

    output = text(flags, result, to_lines)
    pager = None if flags.get("as_json") or flags.get("no_pager") else paging.pager_command(output)
    if pager is None or not paging.page(output, pager):
        terminal.write_result(output)


def text(flags: Flags, result: Document, to_lines: Callable[[Document], list[str]]) -> str:
    """A command's result as text for standard output: JSON with `--json`, nothing with `--quiet`, lines otherwise."""
    if flags.get("as_json"):
        return json.dumps(encode(result)) + "\n"
    if flags.get("quiet"):
        return ""
    return terminal.render("".join(f"{line}\n" for line in to_lines(result)), sys.stdout)


def problems(lines: Sequence[str]) -> None:
    """Write errors to standard error, also with `--quiet` and with `--json`."""
    for line in lines:
        terminal.write_message(line)


def summary(document: Build | Failure) -> None:
    """Add a build to the job summary, if this process runs in a step of GitHub Actions."""
    if os.environ.get("GITHUB_STEP_SUMMARY"):
        from trtbuild.cli.screens import job_summary

        job_summary.write(os.environ, document)


def error(problem: TrtbuildError, *, as_json: bool, command: str) -> None:
    """Write the error that ended a command."""
    if as_json or command == "build":
        from trtbuild.driver.answers import report

        failure = report.failure_document(f"trtbuild.{command}/1", problem)
        if command == "build":
            summary(failure)
        if as_json:
            _write_failure(failure)
    for warning in problem.warnings if isinstance(problem, FrozenError) else ():
        warn(warning)
    for each_problem in problem.problems if isinstance(problem, (ConfigurationErrors, ManifestErrors)) else (problem,):
        terminal.write_message(f"{terminal.red('error')}: {each_problem}")


def _write_failure(failure: Failure) -> None:
    with contextlib.suppress(TrtbuildError):  # the error may be about standard output
        terminal.write_result(json.dumps(encode(failure)) + "\n")


def usage_error(problem: click.ClickException, *, as_json: bool, command: str) -> None:
    """Write the error of a command line that click rejected."""
    if isinstance(problem, click.exceptions.NoArgsIsHelpError) and not as_json:
        terminal.write_message(problem.format_message())
        return
    message, _, suggested = problem.format_message().partition(" Did you mean ")
    message = message.replace("is not a valid integer range", "is not a whole number").rstrip(".")
    message = message.replace("is not a valid float range", "is not a number")
    message = re.sub(r"is not in the range x>=(\d+)", r"is not \1 or more", message)
    context = getattr(problem, "ctx", None)
    more = f"run {context.command_path if context else 'trtbuild'} --help for details"
    hint = f"did you mean {suggested.removesuffix('?')}? {more}" if suggested else more
    error(UsageError(message[:1].lower() + message[1:], hint=hint), as_json=as_json, command=command)


def interrupted(interrupt: BaseException, *, as_json: bool = False, command: str = "build") -> None:
    """Write the message after Ctrl-C or SIGTERM. `interrupt` is an `Interrupted` if a build has begun.

    With `as_json`, write a document, too, unless the command has already written one."""
    unsent, outcome = getattr(interrupt, "unsent", 0), getattr(interrupt, "outcome", None)
    unsent_text = "; some results were not sent to the remotes; send them with trtbuild cache push" if unsent else ""
    message = f"interrupted: the finished results are in the cache{unsent_text}"
    if as_json and not terminal.has_written_result():
        from trtbuild.driver.answers import report

        _write_failure(report.failure_document(f"trtbuild.{command}/1", InterruptError(message), outcome))
    terminal.write_message(message)


def progress_watcher(flags: Flags) -> Watcher:
    """A watcher, which receives the events of a build: it shows progress, and writes the timeline of `--trace`.

    With `--quiet`, no progress is shown.
    """
    from trtbuild.driver.building.progress.events import Watchers

    watchers: list[Watcher] = []
    if not flags.get("quiet"):
        watchers.append(_progress())
    if flags.get("trace_file"):
        from trtbuild.driver.building.progress.timeline import Timeline

        watchers.append(Timeline(flags["trace_file"], warn))
    return Watchers(watchers)


def recording_watcher(flags: Flags) -> Watcher:
    """The watcher of `progress_watcher`, together with a recorder of the build's events.

    The events go to the project's state folder, to the file of `--events`, and into the report of `--report`."""
    from trtbuild.driver.building.progress.events import Watchers
    from trtbuild.driver.building.progress.recorder import Recorder
    from trtbuild.driver.event_log.kept import KeptEvents
    from trtbuild.driver.event_log.lines import EventFile, Sink
    from trtbuild.driver.project.folders import STATE_FOLDER

    requested = request(flags)
    sinks: list[Sink] = []
    if flags.get("report_file"):
        from trtbuild.cli.report_page.page import render, require_jinja2
        from trtbuild.driver.reports.report_file import ReportFile

        require_jinja2()
        sinks.append(ReportFile(flags["report_file"], requested.project, render, warn))
    if flags.get("events_file"):
        sinks.append(EventFile(flags["events_file"], warn))
    sinks.append(KeptEvents(requested.project / STATE_FOLDER))
    return Watchers([progress_watcher(flags), Recorder(sinks)])


def warn(text: str) -> None:
    """Write a warning to standard error, also with `--quiet` and with `--json`."""
    problems([f"{terminal.yellow('warning')}: {text}"])


def _progress() -> Watcher:
    if terminal.can_be_live(sys.stderr):
        from trtbuild.cli.terminal.live import LiveProgress

        return LiveProgress()
    from trtbuild.cli.terminal.progress import Progress

    return Progress()
