"""safetensors files are read without torch, into blobs by tensor."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from trtbuild.core.engine_job import Weight
from trtbuild.driver.weights_file import weights_table
from trtbuild.errors import SourceError
from trtbuild.store.local import LocalStore
from trtbuild.store.memory import MemoryStore


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_every_tensor_becomes_a_blob_of_its_bytes(tmp_path: Path) -> None:
    path, store = tmp_path / "w.safetensors", MemoryStore()
    tensors = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array(3, dtype=np.int64),
        "c": np.zeros((0, 4), dtype=np.float16),
    }
    save_file(tensors, path)
    table = weights_table(path, digest(path), store)
    assert set(table) == {"a", "b", "c"}
    assert table["a"] == Weight("float32", (2, 3), hashlib.sha256(tensors["a"].tobytes()).hexdigest())
    assert store.get_bytes(table["a"].sha256) == tensors["a"].tobytes()
    assert table["b"].shape == ()
    assert store.get_bytes(table["c"].sha256) == b""


def test_the_second_time_the_file_is_not_read(tmp_path: Path) -> None:
    path, store = tmp_path / "w.safetensors", MemoryStore()
    save_file({"a": np.ones(3, dtype=np.float32)}, path)
    sha256 = digest(path)
    first = weights_table(path, sha256, store)
    path.unlink()
    assert weights_table(path, sha256, store) == first


def header(entries: object) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"short", "header's length"),
        ((2**62).to_bytes(8, "little") + b"{}", "header's length"),
        ((4).to_bytes(8, "little") + b"nope", "not JSON"),
        (header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}) + b"1234", "needs 8"),
        (header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}) + b"1234", "needs 8"),
        (header({"a": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}) + b"1", "not understood"),
        (header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}) + b"1234", "bytes where"),
    ],
)
def test_rejects_what_is_no_safetensors_file(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(data)
    with pytest.raises(SourceError, match=said) as caught:
        weights_table(path, digest(path), MemoryStore())
    assert caught.value.file == str(path)
    assert caught.value.hint is not None


def test_rejects_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"")
    with pytest.raises(SourceError):
        weights_table(path, digest(path), MemoryStore())


def test_a_table_that_is_damaged_or_gone_is_made_again(tmp_path: Path) -> None:
    path, store = tmp_path / "w.safetensors", LocalStore(tmp_path / "cache")
    save_file({"a": np.ones(3, dtype=np.float32)}, path)
    sha256 = digest(path)
    first = weights_table(path, sha256, store)
    for kind in ("ac", "cas"):
        for file in [file for file in (store.root / kind).rglob("*") if file.is_file()]:
            file.chmod(0o644)
            file.write_bytes(b"damage")
        assert weights_table(path, sha256, store) == first
    assert weights_table(path, sha256, store) == first
