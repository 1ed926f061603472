"""The result of ``trtbuild verify`` as text.

`a_cut_entry` returns the results of one cut. A cut is one way to divide a model into partitions.
"""

from __future__ import annotations

import re
from dataclasses import replace

import click

from tests.cli.entries import a_build, a_verification, an_error
from tests.core.verified_values import a_cut_entry, a_partition_entry, a_whole_entry
from trtbuild.cli.screens import builds, verifications
from trtbuild.core.model.comparisons import Operator, Place
from trtbuild.core.model.verified import NotRun
from trtbuild.driver.answers.documents import Verification


def lines_of(result: Verification) -> list[str]:
    return [click.unstyle(line) for line in verifications.verify_lines(result)]


def test_a_right_model_is_one_line() -> None:
    first, last = lines_of(a_verification(a_cut_entry()))
    assert re.sub(" +", " ", first) == (
        "net right worst error 2.0e-07 within 1e-05 1 partition 5 points by onnxruntime on the CPU"
    )
    assert last == "ok: 1 model in 1.0 s (--seed 3)"
    assert lines_of(a_verification(a_cut_entry(verdict="hit")))[0].endswith("from the cache")


def test_a_partition_is_shown_with_its_own_tolerance() -> None:
    coarse = {"error": 2e-3, "tolerance": 5e-3}
    part = a_partition_entry("norm", error=9e-6, tolerance=1e-5)
    mixed = a_cut_entry(
        tolerance=5e-3, partitions=[a_partition_entry("linear", **coarse), part], whole=a_whole_entry(**coarse)
    )
    # the worst error is the largest relative to its tolerance
    assert "worst error 9.0e-06  within 1e-05" in lines_of(a_verification(mixed))[0]
    bad = replace(part, status="wrong", error=1e-4)
    lines = lines_of(a_verification(replace(mixed, status="wrong", partitions=[bad])))
    assert lines[1].startswith("    partition norm is wrong: 1.0e-04 away (1e-05 is allowed)")


def test_engines_are_shown_with_their_gpu_or_with_the_reason_why_they_did_not_run() -> None:
    engine = a_cut_entry(by="engine", machine={"platform": "linux-x86_64", "device": "NVIDIA H200", "driver": "580"})
    not_run = [NotRun(target=name, reason="no GPU was found") for name in ("ada", "ampere")]
    lines = lines_of(a_verification(a_cut_entry(), engine, not_run=not_run))
    assert lines[1].endswith("by ada on NVIDIA H200")
    assert lines[2] == "    engines not run: ada, ampere: no GPU was found"


def test_a_wrong_partition_is_shown_with_its_place() -> None:
    operator = Operator("layers.2", "aten.add.Tensor", ["n4"])
    bad = {"status": "wrong", "error": 0.25}
    part = a_partition_entry("layers.2", place=Place(operator, operator, 0.5, ""), **bad)
    lines = lines_of(a_verification(a_cut_entry(status="wrong", partitions=[part], whole=a_whole_entry(**bad))))
    assert lines[1:] == [
        "    partition layers.2 is wrong: 2.5e-01 away (1e-05 is allowed) at profile rows, max (batch = 8)",
        "    first wrong: aten.add.Tensor in layers.2, 5.0e-01 away (ONNX nodes n4)",
        "    worst inputs: .trtbuild/verify/net.safetensors",
        "failed: 1 of 1 model in 1.0 s",
    ]


def test_a_wrong_whole_model_with_right_partitions_is_shown() -> None:
    bad = a_whole_entry(status="wrong", error=0.25)
    lines = lines_of(a_verification(a_cut_entry(status="wrong", whole=bad, lowered=bad)))
    assert lines[1].startswith("    the whole model is wrong: 2.5e-01 away")
    assert lines[2].startswith("    PyTorch's own result in the model's precision is wrong: 2.5e-01 away")


def test_an_unchecked_partition_is_listed() -> None:
    part = a_partition_entry(status="unchecked", error=None, text="onnxruntime has no Foo")
    first, note, last = lines_of(
        replace(a_verification(a_cut_entry(status="unchecked", partitions=[part]), status="unchecked"))
    )
    assert "not all compared" in first and note == "    not compared: partition model: onnxruntime has no Foo"
    assert last == "ok: 1 model, 1 unchecked, in 1.0 s (--seed 3)"


def test_a_model_that_is_not_built_shows_the_build_command() -> None:
    lines = lines_of(a_verification(ok=False, status="missing", missing=["net/trace", "net/lower"]))
    assert lines[0].split() == ["net", "not", "built"]
    assert lines[1:3] == ["    missing: net/trace and 1 more", "    → trtbuild build net"]


def test_errors_are_shown_with_their_hints() -> None:
    result = a_verification(ok=False, errors=[an_error("it breaks", hint="correct it")])
    assert [click.unstyle(line) for line in verifications.failures(result)] == ["error: it breaks", "  → correct it"]
    assert lines_of(result)[0].split() == ["net", "failed"]


def test_a_package_that_cannot_be_verified_is_not_ok() -> None:
    result = replace(a_verification(), ok=False, models=[], errors=[an_error("it has no reference")])
    assert lines_of(result)[-1].startswith("failed: 1 of 1 model")


def test_a_build_that_verifies_has_a_line_about_the_verification() -> None:
    build = a_build(duration_s=1.0, verification=a_verification(a_cut_entry()))
    lines = [click.unstyle(line) for line in builds.build_lines(build)]
    assert lines[0].startswith("verified  net  right")
