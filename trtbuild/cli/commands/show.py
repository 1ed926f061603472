"""How a command answers: its result on standard output, what went wrong and what goes on on standard error.

What each document looks like to a person stands beside it: `builds`, `plans`, `graphs`, `packages`, `differences`,
`diagnoses`, `projects`, `caches`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from trtbuild.cli.terminal import terminal
from trtbuild.errors import ConfigurationErrors, FrozenError, ManifestErrors, TrtbuildError, UsageError

if TYPE_CHECKING:
    from trtbuild.driver.building.events import Watcher

Document = dict[str, Any]
Flags = dict[str, Any]


def document(flags: Flags, found: Document, for_people: Callable[[Document], list[str]]) -> None:
    """A command's result on standard output."""
    terminal.answer(text(flags, found, for_people))


def text(flags: Flags, found: Document, for_people: Callable[[Document], list[str]]) -> str:
    """A command's result as it is written to this standard output: JSON when asked for, else lines."""
    if flags.get("as_json"):
        return json.dumps(found) + "\n"
    if flags.get("quiet"):
        return ""
    return terminal.rendered("".join(f"{line}\n" for line in for_people(found)), sys.stdout)


def problems(lines: Sequence[str]) -> None:
    """What went wrong, on standard error: said with `--quiet` and with `--json` too."""
    for line in lines:
        terminal.say(line)


def summary(document: Document) -> None:
    """A build's part in the job summary of GitHub Actions, where this is one of its steps."""
    if os.environ.get("GITHUB_STEP_SUMMARY"):
        from trtbuild.cli.screens import job_summary

        job_summary.write(os.environ, document)


def error(problem: TrtbuildError, *, as_json: bool, command: str) -> None:
    """An error that ended a command."""
    if as_json or command == "build":
        from trtbuild.driver.answers import report

        found = report.failure_document(f"trtbuild.{command}/1", problem)
        if command == "build":
            summary(found)
        if as_json:
            with contextlib.suppress(TrtbuildError):  # which is perhaps what the error is about
                terminal.answer(json.dumps(found) + "\n")
    for text in problem.warnings if isinstance(problem, FrozenError) else ():
        _warn(text)
    for one in problem.problems if isinstance(problem, (ConfigurationErrors, ManifestErrors)) else (problem,):
        terminal.say(f"{terminal.red('error')}: {one}")


def usage_error(problem: click.ClickException, *, as_json: bool, command: str) -> None:
    """A command line that click refused."""
    if isinstance(problem, click.exceptions.NoArgsIsHelpError) and not as_json:
        terminal.say(problem.format_message())
        return
    said, _, meant = problem.format_message().partition(" Did you mean ")
    said = said.replace("is not a valid integer range", "is no whole number").rstrip(".")
    said = said.replace("is not a valid float range", "is no number")
    said = re.sub(r"is not in the range x>=(\d+)", r"is not \1 or more", said)
    context = getattr(problem, "ctx", None)
    more = f"{context.command_path if context else 'trtbuild'} --help"
    hint = f"did you mean {meant.removesuffix('?')}? {more} says more" if meant else f"{more} says more"
    error(UsageError(said[:1].lower() + said[1:], hint=hint), as_json=as_json, command=command)


def interrupted(*, unsent: int = 0) -> None:
    """Ctrl-C or SIGTERM. `unsent` records were on their way to a remote."""
    sends = "; some of it was not sent to the remotes: trtbuild cache push sends it" if unsent else ""
    terminal.say(f"interrupted: what was finished is in the cache{sends}")


def watching(flags: Flags) -> Watcher:
    """Who watches a build: the progress that this terminal can show, and the timeline of `--trace`."""
    from trtbuild.driver.building.events import Watchers

    watchers: list[Watcher] = []
    if not flags.get("quiet"):
        watchers.append(_progress())
    if flags.get("trace_file"):
        from trtbuild.driver.building.timeline import Timeline

        watchers.append(Timeline(flags["trace_file"], _warn))
    return Watchers(watchers)


def _warn(text: str) -> None:
    problems([f"{terminal.yellow('warning')}: {text}"])


def _progress() -> Watcher:
    if terminal.can_be_live(sys.stderr):
        from trtbuild.cli.terminal.live import LiveProgress

        return LiveProgress()
    from trtbuild.cli.terminal.progress import Progress

    return Progress()
