"""The result of ``trtbuild build`` as text."""

from __future__ import annotations

from typing import Any

import click
import pytest

from tests.cli.entries import a_build as any_build
from tests.cli.entries import a_step, an_error, an_output
from trtbuild.cli.screens import builds
from trtbuild.core.recipes.record import Output
from trtbuild.driver.answers.documents import Build, ErrorEntry, StepEntry


def a_build(*steps: StepEntry, **more: Any) -> Build:
    return any_build(*steps, duration_s=4.21, **more)


def engine(model: str, verdict: str, plan_size: int) -> StepEntry:
    return a_step(model, "engine", verdict, outputs={"plan": Output("0" * 64, plan_size)})


def unstyled(lines: list[str]) -> list[str]:
    return [click.unstyle(line) for line in lines]


def test_a_build_lists_its_outputs_and_counts() -> None:
    result = a_build(
        engine("vit", "run", 3 * 2**20),
        engine("mlp", "hit", 512),
        outputs=[an_output("vit"), an_output("mlp", written=False)],
        warnings=["slow", "slow"],
    )
    assert unstyled(builds.build_lines(result)) == [
        "package  dist/vit  1 engine, 3.0 MiB",
        "warning: slow",
        "done: 1 run, 1 hit in 4.2 s",
    ]
    assert builds.failures(result) == []


def test_a_build_with_nothing_to_do_is_one_line() -> None:
    result = a_build(*[a_step("vit", "trace", "hit")] * 3, outputs=[an_output("vit", written=False)])
    assert unstyled(builds.build_lines(result)) == ["up to date: 3 hit in 4.210 s"]


def test_a_build_that_writes_an_output_is_done_not_up_to_date() -> None:
    result = a_build(a_step("vit", "trace", "hit"), outputs=[an_output("vit")])
    assert unstyled(builds.build_lines(result)) == ["package  dist/vit", "done: 1 hit in 4.2 s"]


@pytest.mark.parametrize(("number", "listed"), [(21, 21), (200, 20)])
def test_at_most_twenty_one_outputs_are_listed(number: int, listed: int) -> None:
    result = a_build(a_step("m", "trace", "run"), outputs=[an_output(f"m{k}") for k in range(number)])
    lines = unstyled(builds.build_lines(result))
    assert sum(line.startswith("package  dist/m") for line in lines) == listed
    assert len(lines) == 22, "21 outputs, or 20 outputs and the number of the others, and the summary line"


def test_failures_with_equal_texts_are_listed_together() -> None:
    def error(step: str, text: str = "it fails\n  in detail", log: str | None = None) -> ErrorEntry:
        return an_error(text, step=step, file="net.py", line=3, hint="correct it", log=log)

    result = a_build(
        a_step("a", "trace", "failed"),
        a_step("a", "lower", "skipped"),
        errors=[error("a/trace"), error("b/trace"), error("c/trace", "died", ".trtbuild/logs/c.log")],
        ok=False,
    )
    assert builds.build_lines(result) == []
    assert unstyled(builds.failures(result)) == [
        "FAIL a/trace, b/trace",
        "  net.py:3: it fails",
        "    in detail",
        "  → correct it",
        "FAIL c/trace",
        "  net.py:3: died",
        "  → correct it",
        "  log: .trtbuild/logs/c.log",
        "failed: 1 failed, 1 skipped in 4.2 s",
    ]


def test_a_failure_with_steps_that_were_not_begun_recommends_keep_going() -> None:
    result = a_build(a_step("a", "trace", "failed"), a_step("b", "trace", "skipped"), ok=False, not_begun=1)
    assert unstyled(builds.failures(result)) == [
        "failed: 1 failed, 1 skipped in 4.2 s; --keep-going builds everything that does not need the failed steps"
    ]


def test_an_error_without_a_step_is_listed_too() -> None:
    result = a_build(
        a_step("a", "trace", "hit"),
        errors=[an_error("the outputs cannot be written")],
        ok=False,
    )
    assert unstyled(builds.failures(result)) == [
        "error",
        "  the outputs cannot be written",
        "failed: 1 hit in 4.2 s",
    ]
