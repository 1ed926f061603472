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
