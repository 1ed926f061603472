"""Weights files: when trtbuild reads them, and the errors about them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from trtbuild.core.model.spec import Input, Model, Origin, Source
from trtbuild.driver.project.model_files import ModelFiles
from trtbuild.errors import ManifestErrors
from trtbuild.store.digests.fingerprint import FileDigests
from trtbuild.store.layers.layered import LayeredStore
from trtbuild.store.local.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "cache")


def a_model(weights: str) -> Model:
    return Model("m", Source("python", "m:f"), (Input("x"),), (), (), Origin("t.yaml", 3), weights=weights)


def test_weights_are_read_from_their_file_when_they_are_needed(store: LocalStore, tmp_path: Path) -> None:
    save_file({"w": np.arange(4, dtype=np.float32)}, tmp_path / "w.safetensors")
    model = a_model("w.safetensors")
    files = ModelFiles(LayeredStore(store), tmp_path, FileDigests(None))
    table = files.weights_table(model)
    assert table is not None
    sha256 = table["w"].sha256
    assert not store.has(sha256)
    files.put_blobs(model, [])
    assert not store.has(sha256)
    files.put_blobs(model, [sha256])
    assert store.get_bytes(sha256) == np.arange(4, dtype=np.float32).tobytes()


def test_the_error_about_a_missing_weights_file_names_its_line(store: LocalStore, tmp_path: Path) -> None:
    with pytest.raises(ManifestErrors, match=r"gone\.safetensors") as caught:
        ModelFiles(LayeredStore(store), tmp_path, FileDigests(None)).weights_table(a_model("gone.safetensors"))
    assert (caught.value.file, caught.value.line) == ("t.yaml", 3)
