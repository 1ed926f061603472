"""The wrappers of functions whose C++ or Rust code uses files, and of environment variables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from trtbuild.stages.trace.discovery.recording import Recorder
from trtbuild.stages.trace.discovery.wrappers import ReaderWrappers
from trtbuild.stages.trace.user_code.places import Places


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    """A recorder whose wrappers are installed. The project is the directory that is returned by `tmp_path`."""
    recorder = Recorder(Path(os.path.realpath(tmp_path)), Places(), {})
    wrappers = ReaderWrappers(recorder)
    wrappers.install()
    yield recorder
    wrappers.remove()


@pytest.mark.parametrize(
    ("save", "load"),
    [
        (lambda path: torch.save({"a": torch.ones(1)}, path), torch.load),
        (lambda path: safetensors.torch.save_file({"a": torch.ones(1)}, path), safetensors.torch.load_file),
    ],
)
def test_a_file_that_torch_or_safetensors_writes_is_written_by_this_process(
    recorder: Recorder, tmp_path: Path, save: Callable[[Any], None], load: Callable[[Any], Any]
) -> None:
    path = tmp_path / "weights"
    assert not os.path.exists(path)  # noqa: PTH110  # a model that makes its weights once, if they are missing
    recorder.record_file(path)
    save(path)
    load(path)
    assert recorder.observations() == ()
    assert recorder.storage_refusals == ["the model's code writes to weights, which it read before"]


def test_a_variable_that_a_settings_library_reads_for_user_code_is_recorded(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_WIDTH", "8")
    omegaconf = pytest.importorskip("omegaconf")
    assert omegaconf.OmegaConf.create({"width": "${oc.env:MODEL_WIDTH}"}).width == "8"
    assert "environment:MODEL_WIDTH" in [seen.dependency.part for seen in recorder.observations()]
    assert not recorder.storage_refusals


@pytest.mark.parametrize("declares_variables", [False, True])
def test_a_settings_library_that_reads_all_variables_needs_declared_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declares_variables: bool
) -> None:
    class Settings(pytest.importorskip("pydantic_settings").BaseSettings):  # type: ignore[misc]
        model_width: int = 4

    monkeypatch.setenv("MODEL_WIDTH", "8")
    recorder = Recorder(Path(os.path.realpath(tmp_path)), Places(), {})
    wrappers = ReaderWrappers(recorder, declares_variables=declares_variables)
    wrappers.install()
    try:
        assert Settings().model_width == 8
    finally:
        wrappers.remove()
    assert ["in `env` of the source" in text for text in recorder.storage_refusals] == [True] * (not declares_variables)
    assert "environment:MODEL_WIDTH" not in [seen.dependency.part for seen in recorder.observations()]
