"""What a verification looks like to a person."""

from __future__ import annotations

import re
from typing import Any

import click

from trtbuild.cli.screens import builds, verifications
from trtbuild.driver.answers.documents import Build

WORST = {"profile": "rows", "which": "max", "dims": {"batch": 8}, "seed": 1, "zeros": False}
RIGHT = {"status": "right", "error": 2e-7, "text": "", "output": 0, "worst": WORST, "points": 5}


def cut(**changes: Any) -> dict[str, Any]:
    part = {"partition": "model", "onnx": "a" * 64, "place": None, "plans": {}, **RIGHT}
    return {
        "by": "onnxruntime",
        "targets": ["ada"],
        "status": "right",
        "verdict": "run",
        "tolerance": 1e-5,
        "points": [WORST] * 5,
        "partitions": [part],
        "whole": RIGHT,
        "lowered": RIGHT,
        "worst_input": ".trtbuild/verify/net.safetensors",
        "machine": {"platform": "linux-x86_64"},
        **changes,
    }


def document(*cuts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    wrong = any(one["status"] == "wrong" for one in cuts)
    status = "wrong" if wrong else "right" if cuts else "failed"
    model = {
        "model": "net",
        "ok": not wrong,
        "status": status,
        "missing": [],
        "cuts": list(cuts),
        "not_run": [],
        **changes,
    }
    return {"ok": model["ok"], "duration_s": 1.0, "seed": 3, "models": [model], "errors": [], "warnings": []}


def shown(found: dict[str, Any]) -> list[str]:
    return [click.unstyle(line) for line in verifications.verified(found)]


def test_what_is_right_is_one_line() -> None:
    first, last = shown(document(cut()))
    assert re.sub(" +", " ", first) == (
        "net right worst error 2.0e-07 within 1e-05 1 partition 5 points by onnxruntime on the CPU"
    )
    assert last == "ok: 1 model in 1.0 s (--seed 3)"
    assert shown(document(cut(verdict="hit")))[0].endswith("known")


def test_each_entry_is_told_with_its_own_tolerance() -> None:
    coarse = {**RIGHT, "error": 2e-3, "tolerance": 5e-3}
    part = {"partition": "norm", "place": None, **RIGHT, "error": 9e-6, "tolerance": 1e-5}
    mixed = cut(tolerance=5e-3, partitions=[{**part, **coarse, "partition": "linear"}, part], whole=coarse)
    assert "worst error 9.0e-06  within 1e-05" in shown(document(mixed))[0]  # what is nearest to its tolerance
    bad = {**part, "status": "wrong", "error": 1e-4}
    lines = shown(document({**mixed, "status": "wrong", "partitions": [bad]}))
    assert lines[1].startswith("    partition norm is wrong: 1.0e-04 away (1e-05 is allowed)")


def test_engines_say_their_gpu_and_those_that_did_not_run_why() -> None:
    engine = cut(by="engine", machine={"platform": "linux-x86_64", "device": "NVIDIA H200", "driver": "580"})
    not_run = [{"target": name, "reason": "no GPU was found"} for name in ("ada", "ampere")]
    lines = shown(document(cut(), engine, not_run=not_run))
    assert lines[1].endswith("by ada on NVIDIA H200")
    assert lines[2] == "    engines not run: ada, ampere: no GPU was found"


def test_what_is_wrong_is_named_with_its_place() -> None:
    operator = {"module": "layers.2", "operator": "aten.add.Tensor", "nodes": ["n4"]}
    place = {"first": operator, "since": operator, "error": 0.5, "text": ""}
    bad = {**RIGHT, "status": "wrong", "error": 0.25}
    part = {"partition": "layers.2", "place": place, **bad}
    lines = shown(document(cut(status="wrong", partitions=[part], whole=bad)))
    assert lines[1:] == [
        "    partition layers.2 is wrong: 2.5e-01 away (1e-05 is allowed) at profile rows, max (batch = 8)",
        "    first wrong: aten.add.Tensor in layers.2, 5.0e-01 away (ONNX nodes n4)",
        "    worst inputs: .trtbuild/verify/net.safetensors",
        "failed: 1 of 1 model in 1.0 s",
    ]


def test_a_whole_that_is_wrong_while_its_partitions_are_right() -> None:
    bad = {**RIGHT, "status": "wrong", "error": 0.25}
    lines = shown(document(cut(status="wrong", whole=bad, lowered=bad)))
    assert lines[1].startswith("    the whole model is wrong: 2.5e-01 away")
    assert lines[2].startswith("    the model in its precision, by PyTorch itself, is wrong: 2.5e-01 away")


def test_what_was_not_compared_is_said() -> None:
    part = {**cut()["partitions"][0], "status": "unchecked", "error": None, "text": "onnxruntime has no Foo"}
    first, note, _ = shown(document(cut(status="unchecked", partitions=[part])))
    assert "not all compared" in first and note == "    not compared: partition model: onnxruntime has no Foo"


def test_what_is_not_built_has_the_command_that_builds_it() -> None:
    lines = shown(document(ok=False, missing=["net/trace", "net/lower"]))
    assert lines[0].split() == ["net", "not", "built"]
    assert lines[1:3] == ["    missing: net/trace and 1 more", "    → trtbuild build net"]


def test_errors_go_to_standard_error_with_what_to_do() -> None:
    found = {**document(ok=False), "errors": [{"text": "it breaks", "hint": "mend it"}]}
    assert [click.unstyle(line) for line in verifications.failures(found)] == ["error: it breaks", "  → mend it"]
    assert shown(found)[0].split() == ["net", "failed"]


def test_a_package_that_cannot_be_verified_is_not_ok() -> None:
    found = {**document(), "ok": False, "models": [], "errors": [{"text": "it has no reference", "hint": None}]}
    assert shown(found)[-1].startswith("failed: 1 of 1 model")


def test_a_build_that_verifies_says_so_in_a_line() -> None:
    build = Build(
        ok=True, duration_s=1.0, totals={}, steps=[], outputs=[], not_begun=0, errors=[], warnings=[], remotes=[],
        verification=document(cut()),
    )  # fmt: skip
    lines = [click.unstyle(line) for line in builds.built(build)]
    assert lines[0].startswith("verified  net  right")
