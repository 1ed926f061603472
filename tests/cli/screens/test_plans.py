"""The results of ``trtbuild plan``, ``why`` and ``status`` as text. Other tests check the JSON documents."""

from __future__ import annotations

from dataclasses import replace

import click

from tests.cli.entries import NEW, RECORDED, a_plan, a_step, an_error, changed
from trtbuild.cli.screens import plans
from trtbuild.core.planning.graph import Reason
from trtbuild.driver.answers.documents import ModelStatus, NearestRecord, NextStep, Status, StepEntry, Why, WhyStep
from trtbuild.driver.project.history import LastRun

TARGETS = ("ada", "ampere", "blackwell", "turing", "hopper")


def unstyled(lines: list[str]) -> list[str]:
    return [click.unstyle(line) for line in lines]


def a_why_step(step: StepEntry, last_run: LastRun | None = None) -> WhyStep:
    return WhyStep(id=step.id, key=step.key, verdict=step.verdict, reason=step.reason, last_run=last_run)


def a_status(model: str, up_to_date: bool, unknown: int = 0, reason: Reason | None = None) -> ModelStatus:
    first = None if reason is None else NextStep(id=f"{model}/trace", reason=reason)
    steps = {"hit": 0, "run": 1, "unknown": unknown}
    return ModelStatus(model=model, up_to_date=up_to_date, steps=steps, next=first, outputs=[])


def test_steps_of_one_name_for_several_targets_are_one_row() -> None:
    steps = [a_step("vit", "engine/layers.0", "run", changed("weights.w0"), target) for target in TARGETS]
    assert unstyled(plans.plan_lines(a_plan(*steps))) == [
        "vit",
        "  run      engine/layers.0 × 5 targets  weights.w0 changed",
        "plan: 5 run",
    ]
    assert unstyled(plans.plan_lines(a_plan(*steps[:2])))[1] == (
        "  run      engine/layers.0 @ada,ampere  weights.w0 changed"
    )


def test_the_name_of_a_file_keeps_the_directory_that_is_called_like_the_model() -> None:
    for name in ("models/vit/net.py", "vit/net.py", "vit/engine/net.py"):
        result = a_plan(a_step("vit", "trace", "run", changed(f"file:{name}")))
        assert unstyled(plans.plan_lines(result))[1] == f"  run      trace  {name} changed"


def test_unknown_steps_share_one_row_and_hits_are_counted() -> None:
    result = a_plan(
        a_step("vit", "trace", "run", changed("file:vit.py")),
        a_step("vit", "lower", "unknown", NEW),
        a_step("vit", "engine", "unknown", NEW, "ada"),
        a_step("vit", "package", "unknown", NEW),
        a_step("mlp", "trace", "hit", RECORDED),
    )
    assert unstyled(plans.plan_lines(result)) == [
        "vit",
        "  run      trace  vit.py changed",
        "  unknown  lower, engine @ada, package",
        "plan: 1 run, 3 unknown until the others have run, 1 hit",
    ]


def test_a_plan_with_nothing_to_do_says_so() -> None:
    assert plans.plan_lines(a_plan(a_step("vit", "trace", "hit", RECORDED))) == ["plan: nothing to run, 1 hit"]


def test_a_thousand_engines_stay_readable() -> None:
    models = [f"m{number:03}" for number in range(200)]
    steps = [
        a_step(model, "engine/model", "run", changed("onnx"), target)
        for model in models
        for target in TARGETS
        if model != "m007"
    ]
    steps += [a_step("m007", "trace", "run", changed("file:seven.py"))]
    assert unstyled(plans.plan_lines(a_plan(*steps))) == [
        "m000, m001, m002 and 196 more",
        "  run      engine/model × 5 targets  onnx changed",
        "m007",
        "  run      trace  seven.py changed",
        "plan: 996 run",
    ]


def test_a_long_list_of_rows_is_shortened_with_the_number_of_the_others() -> None:
    steps = [
        a_step("vit", f"engine/layers.{number}", "run", changed(f"weights.w{number}"), "ada") for number in range(100)
    ]
    lines = unstyled(plans.plan_lines(a_plan(*steps)))
    assert lines[-2:] == [f"  … and {100 - plans.MOST_ROWS} more rows", "plan: 100 run"]
    assert len(lines) == plans.MOST_ROWS + 3


def test_errors_of_a_plan_have_their_place_and_hint() -> None:
    error = an_error("no toolchain builds SM 90", file="trtbuild.yaml", line=3, hint="use a GPU")
    lines = unstyled(plans.plan_lines(a_plan(a_step("vit", "trace", "run", NEW), errors=[error])))
    assert "error: trtbuild.yaml:3: no toolchain builds SM 90\n  → use a GPU" in lines


def test_why_lists_every_changed_part_and_the_reason_of_the_last_run() -> None:
    result = Why(
        steps=[
            a_why_step(a_step("vit", "trace", "run", changed("file:vit.py", "file:layers.py"))),
            a_why_step(a_step("vit", "lower", "hit", RECORDED), LastRun(changed("graph"), 1.25)),
        ],
        warnings=[],
    )
    assert unstyled(plans.why_lines(result)) == [
        "vit/trace  run: 2 parts changed",
        "    file:vit.py     000000000000 → ffffffffffff",
        "    file:layers.py  000000000000 → ffffffffffff",
        "vit/lower  hit: nothing that it depends on has changed",
        "    last ran in 1.2 s: 1 part changed",
        "    graph  000000000000 → ffffffffffff",
    ]


def test_why_shows_the_parts_that_differ_in_the_nearest_record() -> None:
    nearest = NearestRecord(
        key="0" * 64, builder="ci@runner", finished="2026-01-02T03:04:05Z", changed=changed("file:vit.py").changed
    )
    step = replace(a_why_step(a_step("vit", "trace", "run", NEW)), nearest=nearest)
    assert unstyled(plans.why_lines(Why(steps=[step], warnings=[]))) == [
        "vit/trace  run: it was not built in this project before",
        "    the nearest record in the cache was made by ci@runner, 2026-01-02T03:04:05Z; 1 part differs:",
        "    file:vit.py  000000000000 → ffffffffffff",
    ]


def test_the_status_says_what_each_model_still_needs() -> None:
    models = [
        a_status("a", True),
        a_status("bb", False),
        a_status("c", False, 5, changed("file:c.py")),
    ]
    assert unstyled(plans.status_lines(Status(models=models, warnings=[]))) == [
        "a   up to date",
        "bb  built; its outputs are not in place: trtbuild build bb",
        "c   at least 1 to run, beginning with trace: c.py changed",
        "1 of 3 models up to date",
    ]


def test_the_status_of_many_models_lists_those_that_are_not_up_to_date() -> None:
    models = [a_status(f"m{k}", k != 7) for k in range(200)]
    assert unstyled(plans.status_lines(Status(models=models, warnings=[]))) == [
        "m7  built; its outputs are not in place: trtbuild build m7",
        "199 of 200 models up to date",
    ]
