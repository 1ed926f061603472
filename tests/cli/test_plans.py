"""Plans, reasons and states as a person reads them; documents have tests of their own."""

from __future__ import annotations

from typing import Any

import click

from trtbuild.cli.screens import plans

TARGETS = ("ada", "ampere", "blackwell", "turing", "hopper")

NEW = {"code": "new", "text": "it was not built in this project before", "changed": []}
RECORDED = {"code": "recorded", "text": "nothing that it depends on has changed", "changed": []}


def changed(*parts: str) -> dict[str, Any]:
    return {
        "code": "changed",
        "text": f"changed: {', '.join(parts)}",
        "changed": [{"part": part, "was": "0" * 64, "now": "f" * 64} for part in parts],
    }


def a_step(model: str, name: str, verdict: str, reason: dict[str, Any], target: str | None = None) -> dict[str, Any]:
    identifier = f"{model}/{name}" + (f"@{target}" if target else "")
    stage = name.partition("/")[0]
    return {
        "id": identifier,
        "model": model,
        "stage": stage,
        "target": target,
        "verdict": verdict,
        "reason": reason,
        "last_run": None,
    }


def document(*steps: dict[str, Any], errors: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"steps": list(steps), "errors": list(errors)}


def shown(lines: list[str]) -> list[str]:
    return [click.unstyle(line) for line in lines]


def test_steps_of_one_name_for_several_targets_are_one_row() -> None:
    steps = [a_step("vit", "engine/layers.0", "run", changed("weights.w0"), target) for target in TARGETS]
    assert shown(plans.planned(document(*steps))) == [
        "vit",
        "  run      engine/layers.0 × 5 targets  weights.w0 changed",
        "plan: 5 run",
    ]
    assert shown(plans.planned(document(*steps[:2])))[1] == (
        "  run      engine/layers.0 @ada,ampere  weights.w0 changed"
    )


def test_what_waits_is_one_row_and_hits_are_counted() -> None:
    found = document(
        a_step("vit", "trace", "run", changed("file:vit.py")),
        a_step("vit", "lower", "unknown", NEW),
        a_step("vit", "engine", "unknown", NEW, "ada"),
        a_step("vit", "package", "unknown", NEW),
        a_step("mlp", "trace", "hit", RECORDED),
    )
    assert shown(plans.planned(found)) == [
        "vit",
        "  run      trace  vit.py changed",
        "  unknown  lower, engine @ada, package",
        "plan: 1 run, 3 unknown until those have run, 1 hit",
    ]


def test_a_plan_with_nothing_to_do_says_so() -> None:
    assert plans.planned(document(a_step("vit", "trace", "hit", RECORDED))) == ["plan: nothing to run, 1 hit"]


def test_a_thousand_engines_stay_readable() -> None:
    models = [f"m{number:03}" for number in range(200)]
    steps = [
        a_step(model, "engine/model", "run", changed("onnx"), target)
        for model in models
        for target in TARGETS
        if model != "m007"
    ]
    steps += [a_step("m007", "trace", "run", changed("file:seven.py"))]
    assert shown(plans.planned(document(*steps))) == [
        "m000, m001, m002 and 196 more",
        "  run      engine/model × 5 targets  onnx changed",
        "m007",
        "  run      trace  seven.py changed",
        "plan: 996 run",
    ]


def test_a_model_with_many_different_reasons_is_cut_and_says_by_how_much() -> None:
    steps = [
        a_step("vit", f"engine/layers.{number}", "run", changed(f"weights.w{number}"), "ada") for number in range(100)
    ]
    lines = shown(plans.planned(document(*steps)))
    assert lines[-2:] == [f"  … and {100 - plans.MOST_ROWS} more rows", "plan: 100 run"]
    assert len(lines) == plans.MOST_ROWS + 3


def test_errors_of_a_plan_have_their_place_and_hint() -> None:
    error = {"text": "no toolchain builds SM 90", "file": "trtbuild.yaml", "line": 3, "hint": "use a GPU"}
    lines = shown(plans.planned(document(a_step("vit", "trace", "run", NEW), errors=(error,))))
    assert "error: trtbuild.yaml:3: no toolchain builds SM 90\n  → use a GPU" in lines


def test_why_lists_every_part_and_what_was_the_reason_last_time() -> None:
    last = {"reason": changed("graph"), "duration_s": 1.25}
    found = document(
        a_step("vit", "trace", "run", changed("file:vit.py", "file:layers.py")),
        {**a_step("vit", "lower", "hit", RECORDED), "last_run": last},
    )
    assert shown(plans.why(found)) == [
        "vit/trace  run: 2 parts changed",
        "    file:vit.py     000000000000 → ffffffffffff",
        "    file:layers.py  000000000000 → ffffffffffff",
        "vit/lower  hit: nothing that it depends on has changed",
        "    last ran in 1.2 s: 1 part changed",
        "    graph  000000000000 → ffffffffffff",
    ]


def test_the_status_of_models() -> None:
    models = [
        {"model": "a", "up_to_date": True, "next": None, "steps": {}},
        {"model": "bb", "up_to_date": False, "next": None, "steps": {}},
        {
            "model": "c",
            "up_to_date": False,
            "next": {"id": "c/trace", "reason": changed("file:c.py")},
            "steps": {"hit": 0, "run": 1, "unknown": 5},
        },
    ]
    assert shown(plans.status({"models": models})) == [
        "a   up to date",
        "bb  built; its outputs are not in place: trtbuild build bb",
        "c   at least 1 to run, first trace: c.py changed",
        "1 of 3 models up to date",
    ]


def test_the_status_of_many_models_is_that_of_those_which_are_not_up_to_date() -> None:
    models = [{"model": f"m{k}", "up_to_date": k != 7, "next": None, "steps": {}} for k in range(200)]
    assert shown(plans.status({"models": models})) == [
        "m7  built; its outputs are not in place: trtbuild build m7",
        "199 of 200 models up to date",
    ]
