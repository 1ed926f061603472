"""``trtbuild plan``: show the steps that a build would run, and the reasons."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

import click

from trtbuild.cli.commands import completing, show
from trtbuild.cli.commands.options import common_flags, request
from trtbuild.cli.commands.sections import Command, examples
from trtbuild.cli.terminal import terminal
from trtbuild.errors import UsageError


@click.command(
    cls=Command,
    epilog=examples(
        "trtbuild plan --json", "trtbuild plan --matrix github    # jobs for the runners of GitHub Actions"
    ),
)
@click.argument("models", nargs=-1, shell_complete=completing.models)
@click.option(
    "--matrix",
    "matrix_form",
    type=click.Choice(["github"]),
    help="Instead of the plan, print the CI jobs that build the missing engines, as a matrix (JSON).",
)
@click.option(
    "--job-duration",
    "job_duration_s",
    type=click.IntRange(min=1),
    metavar="S",
    help="With --matrix: the seconds of work that one job gets, by estimate. Fewer seconds make more jobs. Default: 600.",
)
@common_flags
def plan(models: tuple[str, ...], matrix_form: str | None, job_duration_s: int | None, flags: dict[str, Any]) -> int:
    """Show what a build would do, and why. Runs nothing, and needs neither torch nor TensorRT."""
    if matrix_form is not None:
        return _print_matrix(models, job_duration_s, flags)
    if job_duration_s is not None:
        raise UsageError("--job-duration needs --matrix", hint="add --matrix github")
    return _print_plan(models, flags)


def _print_plan(models: tuple[str, ...], flags: dict[str, Any]) -> int:
    """Print the plan. `keep_plan` may write a snapshot of it, which `trtbuild.null_build` prints next time."""
    from trtbuild.cli.screens import plans
    from trtbuild.driver.answers import inquiries
    from trtbuild.driver.up_to_date import snapshot

    start_s = time.monotonic()
    workspace = inquiries.read_only_workspace(request(flags, models))
    document, model_plans = inquiries.plan(workspace, start_s)
    show.paged(flags, document, plans.plan_lines)
    render = partial(show.text, flags, to_lines=plans.plan_lines)
    snapshot.keep_plan(workspace, model_plans, document, flags["arguments"], render)
    return 0 if document.ok else 2


def _print_matrix(models: tuple[str, ...], job_duration_s: int | None, flags: dict[str, Any]) -> int:
    """Print the matrix on one line, with or without ``--json``. Warnings go to standard error."""
    from trtbuild.driver.answers.matrix import DEFAULT_JOB_DURATION_S, matrix

    planned = matrix(request(flags, models), job_duration_s or DEFAULT_JOB_DURATION_S)
    terminal.write_result(json.dumps(planned.to_json()) + "\n")
    for text in planned.warnings:
        show.warn(text)
    return 0
