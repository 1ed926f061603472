"""The error of a failed step names the line that must change in the manifest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trtbuild.core.model.spec import Input, Model, Origin, Profile, ShapeRange, Source, Target
from trtbuild.driver.project.blame import place_in_manifest, place_of_target
from trtbuild.errors import ConversionRefused, InternalError, SourceError, StoreError, ToolchainError, TrtbuildError

PLACES = (
    "source.python",
    "partition.granularity",
    "partition.torch_executed_ops",
    "partition.require_full_compilation",
    "targets.ada",
    "weights",
)
MODEL = Model(
    name="net",
    source=Source("python", "net:build"),
    inputs=(Input("x"),),
    profiles=(Profile("rows", (("x", ShapeRange((1,), (1,), (1,))),)),),
    targets=(Target("ada", 89, "tensorrt-rtx", None, "exact", "linux-x86_64"),),
    origin=Origin("trtbuild.yaml", 1),
    places={path: Origin("trtbuild.yaml", 10 + number) for number, path in enumerate(PLACES)},
)


def step(stage: str, target: str | None = None) -> Any:
    return SimpleNamespace(stage=stage, target=target)


@pytest.mark.parametrize(
    ("error", "failed_step", "path"),
    [
        (SourceError("", code="granularity"), step("partition", "ada"), "partition.granularity"),
        (SourceError("", code="torch-executed-ops"), step("partition", "ada"), "partition.torch_executed_ops"),
        (ConversionRefused(""), step("partition", "ada"), "partition.require_full_compilation"),
        (ConversionRefused(""), step("lower"), "source.python"),
        (ToolchainError(""), step("trace"), "source.python"),
        (ToolchainError(""), step("engine", "ada"), "targets.ada"),
    ],
)
def test_an_error_has_the_line_of_its_field(error: TrtbuildError, failed_step: Any, path: str) -> None:
    place_in_manifest(error, MODEL, failed_step)
    assert (error.file, error.line) == ("trtbuild.yaml", 10 + PLACES.index(path))


def test_an_error_about_a_missing_field_has_the_line_of_the_model() -> None:
    error = ToolchainError("")
    place_in_manifest(error, MODEL, step("engine", "hopper"))
    assert (error.file, error.line) == ("trtbuild.yaml", 1)


def test_an_error_that_has_a_line_keeps_it() -> None:
    error = SourceError("", code="granularity", file="net.py", line=3)
    place_in_manifest(error, MODEL, step("partition"))
    assert (error.file, error.line) == ("net.py", 3)


@pytest.mark.parametrize("error", [StoreError(""), InternalError("")])
def test_an_error_that_the_manifest_does_not_cause_has_no_line(error: TrtbuildError) -> None:
    place_in_manifest(error, MODEL, step("engine", "ada"))
    assert error.file is None


def test_an_error_about_a_target_has_the_line_of_the_target() -> None:
    error = ToolchainError("")
    place_of_target(error, MODEL, MODEL.targets[0])
    assert (error.file, error.line) == ("trtbuild.yaml", 10 + PLACES.index("targets.ada"))
