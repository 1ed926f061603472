"""An error of a `python:` source names the callable's line if the callable must change, otherwise the manifest's line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trtbuild.core.model.spec import Source
from trtbuild.errors import SourceError
from trtbuild.stages.trace.sources.python_source import PythonSource
from trtbuild.stages.trace.user_code.frames import Frames
from trtbuild.stages.trace.user_code.owners import FileOwners

MODULE = """\
from torch import nn
from torch.nn import Linear


def build(depth, width=4):
    return nn.Linear(width, width).eval()


def anything(**kwargs):
    return nn.Linear(4, 4).eval()


def pair():
    return nn.Linear(4, 4), 3


def training():
    return nn.Linear(4, 4)


def wrapped(depth):
    return nn.Linear(depth, depth).eval()


wrapped.__signature__ = 3  # inspect.signature raises TypeError
SIZES = {"small": 4}
"""
MANIFEST = ("trtbuild.yaml", 3)


@pytest.fixture(autouse=True)
def wrong_source_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong_source.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "wrong_source", raising=False)


@pytest.fixture
def error_of(tmp_path: Path, job_of: Callable[..., Any]) -> Callable[..., SourceError]:
    """A function that reads a source and returns the error."""

    def error_of(target: str, **kwargs: Any) -> SourceError:
        job = job_of({"x": (4, 4)}, source=Source("python", target, kwargs))
        with pytest.raises(SourceError) as caught:
            PythonSource(job, tmp_path, Frames(FileOwners(), tmp_path)).read()
        return caught.value

    return error_of


@pytest.mark.parametrize(
    ("target", "kwargs", "text", "hint", "place"),
    [
        ("wrong_souce:build", {}, "no module 'wrong_souce'", "did you mean 'wrong_source'?", MANIFEST),
        ("wrong_source.py:build", {}, "no module 'wrong_source.py'", 'write "wrong_source:build"', MANIFEST),
        ("wrong_source:biuld", {}, "has no 'biuld'", "did you mean 'build'? it has: anything, build, pair", MANIFEST),
        (
            "wrong_source:build.make",
            {},
            "has no 'build.make'",
            "has no function or class that is defined there",
            MANIFEST,
        ),
        ("wrong_source:SIZES.build", {}, "has no 'SIZES.build'", "has no function or class", MANIFEST),
        ("wrong_source:build", {}, "needs a value for 'depth'", "kwargs: {depth: …}", MANIFEST),
        ("wrong_source:build", {"dept": 1}, "takes no argument 'dept'", "did you mean 'depth'?", MANIFEST),
        ("wrong_source:pair", {}, "returned a value of type tuple", "return the module alone", ("wrong_source.py", 13)),
        ("wrong_source:training", {}, "is in training mode", ".eval()", ("wrong_source.py", 17)),
    ],
)
def test_rejects_wrong_sources_and_names_the_place(
    error_of: Callable[..., SourceError], target: str, kwargs: Any, text: str, hint: str, place: tuple[str, int]
) -> None:
    error = error_of(target, **kwargs)
    assert text in error.text
    assert hint in (error.hint or "")
    assert (error.file, error.line) == place


def test_a_callable_that_takes_anything_is_called(tmp_path: Path, job_of: Callable[..., Any]) -> None:
    job = job_of({"x": (4, 4)}, source=Source("python", "wrong_source:anything", {"depth": 1}))
    assert isinstance(PythonSource(job, tmp_path, Frames(FileOwners(), tmp_path)).read(), nn.Linear)


def test_a_function_whose_signature_cannot_be_read_is_called(error_of: Callable[..., SourceError]) -> None:
    error = error_of("wrong_source:wrapped", width=4)
    assert "wrong_source:wrapped(width=4) fails" in str(error)
    assert "unexpected keyword argument 'width'" in str(error)


@pytest.mark.parametrize("warn_only", [False, True])
def test_the_projects_setting_of_deterministic_algorithms_stays(
    tmp_path: Path, job_of: Callable[..., Any], warn_only: bool
) -> None:
    job = job_of({"x": (4, 4)}, source=Source("python", "wrong_source:anything"))
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        PythonSource(job, tmp_path, Frames(FileOwners(), tmp_path)).read()
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled() is warn_only
    finally:
        torch.use_deterministic_algorithms(False)
