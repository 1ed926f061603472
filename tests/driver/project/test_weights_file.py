"""Safetensors files are read without torch, and each needed tensor becomes a blob."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.store.memory_store import MemoryStore
from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.recipes import keys
from trtbuild.core.recipes.record import Output, Record
from trtbuild.driver.project.weights_file import WeightsFile
from trtbuild.errors import SourceError, StoreUnavailable
from trtbuild.store.digests.fingerprint import FileDigests
from trtbuild.store.digests.index import Index
from trtbuild.store.local.local import LocalStore
from trtbuild.store.trust.keyring import Keyring
from trtbuild.store.trust.signing import Signer


def a_file(folder: Path) -> WeightsFile:
    return WeightsFile("weights/w.safetensors", folder / "w.safetensors")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_each_tensor_that_is_needed_becomes_a_blob_of_its_bytes(tmp_path: Path) -> None:
    file, store = a_file(tmp_path), MemoryStore()
    path = file.path
    tensors = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array(3, dtype=np.int64),
        "c": np.zeros((0, 4), dtype=np.float16),
    }
    save_file(tensors, path)
    table = file.table(digest(path), store)
    assert set(table) == {"a", "b", "c"}
    assert table["a"] == Weight("float32", (2, 3), hashlib.sha256(tensors["a"].tobytes()).hexdigest())
    assert table["b"].shape == ()
    file.put_tensors(table, [table["a"].sha256, table["c"].sha256], store)
    assert store.get_bytes(table["a"].sha256) == tensors["a"].tobytes()
    assert store.get_bytes(table["c"].sha256) == b""
    assert not store.has(table["b"].sha256)


def test_the_table_of_a_known_file_comes_from_the_store(tmp_path: Path) -> None:
    file, store = a_file(tmp_path), MemoryStore()
    path = file.path
    save_file({"a": np.ones(3, dtype=np.float32)}, path)
    sha256 = digest(path)
    first = file.table(sha256, store)
    path.unlink()
    assert file.table(sha256, store) == first


def test_a_table_that_is_not_trusted_is_made_again(tmp_path: Path) -> None:
    """The key that signed it may have expired, or another user of the cache may have stored it."""
    file = a_file(tmp_path)
    save_file({"a": np.ones(3, dtype=np.float32)}, file.path)
    sha256 = digest(file.path)
    first = file.table(sha256, LocalStore(tmp_path / "store"))  # not signed
    store = LocalStore(tmp_path / "store", trust=Keyring(signer=Signer.new("ci")))
    assert file.table(sha256, store) == first
    file.path.unlink()
    assert file.table(sha256, store) == first  # signed


@pytest.mark.parametrize("text", [b"[" * 100_000, b"5", b'{"a": 5}', b'{"a": {"dtype": "float32", "shape": [3]}}'])
def test_an_unreadable_table_is_made_again(tmp_path: Path, text: bytes) -> None:
    file, store = a_file(tmp_path), MemoryStore()
    save_file({"a": np.ones(3, dtype=np.float32)}, file.path)
    sha256 = digest(file.path)
    first = file.table(sha256, store)
    store.put_record(Record(keys.weights_file(sha256), {"table": store.put_bytes(text)}), replace=True)
    assert file.table(sha256, store) == first


def test_a_table_that_cannot_be_stored_is_used(tmp_path: Path) -> None:
    """A plan of locked engines, for example, works with a cache that is read-only."""

    class FullStore(MemoryStore):
        def put_bytes(self, data: bytes | memoryview) -> Output:
            raise StoreUnavailable("no space left on device")

    file = a_file(tmp_path)
    save_file({"a": np.ones(3, dtype=np.float32)}, file.path)
    assert set(file.table(digest(file.path), FullStore())) == {"a"}


def header(entries: object) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"short", "header's length"),
        ((2**62).to_bytes(8, "little") + b"{}", "header's length"),
        ((4).to_bytes(8, "little") + b"nope", "not JSON"),
        (header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}) + b"1234", "needs 8"),
        (header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}) + b"1234", "cut off"),
        (header({"a": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}) + b"1", "not understood"),
        (header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}) + b"1234", "bytes where"),
        (header({"a": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}) + b"1234", "bytes where"),
        (header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}) + b"12345678", "begins at byte 4"),
        (header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}) + b"12345", "cut off or added to"),
        (header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}) + b"123", "cut off or added to"),
        (header([1]), "not an object"),
        (header({"a": None}), "not understood"),
    ],
)
def test_rejects_invalid_files_and_unknown_dtypes(tmp_path: Path, data: bytes, message: str) -> None:
    file = a_file(tmp_path)
    path = file.path
    path.write_bytes(data)
    with pytest.raises(SourceError, match=message) as caught:
        file.table(digest(path), MemoryStore())
    assert caught.value.file == file.name
    assert caught.value.hint is not None


def test_rejects_an_empty_file(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    path = file.path
    path.write_bytes(b"")
    with pytest.raises(SourceError, match="it is empty"):
        file.table(digest(path), MemoryStore())


def test_a_damaged_or_missing_table_is_made_again(tmp_path: Path) -> None:
    file, store = a_file(tmp_path), LocalStore(tmp_path / "cache")
    path = file.path
    save_file({"a": np.ones(3, dtype=np.float32)}, path)
    sha256 = digest(path)
    first = file.table(sha256, store)

    def damage(entry: Path) -> None:
        entry.chmod(0o644)
        entry.write_bytes(b"damage")

    for change in (damage, Path.unlink):
        for kind in ("ac", "cas"):
            entries = [entry for entry in (store.root / kind).rglob("*") if entry.is_file()]
            assert entries
            for entry in entries:
                change(entry)
            assert file.table(sha256, store) == first
    assert file.table(sha256, store) == first


def test_rejects_a_checkpoint_and_says_how_to_convert_it(tmp_path: Path) -> None:
    file = WeightsFile("weights/vit.pt", tmp_path / "vit.pt")
    for first_bytes in (b"PK\x03\x04", b"\x80\x02", b"\x80\x04"):
        file.path.write_bytes(first_bytes + bytes(100))
        with pytest.raises(SourceError, match="PyTorch checkpoint") as caught:
            file.table(digest(file.path), MemoryStore())
        assert caught.value.hint is not None and "weights_only=True" in caught.value.hint
        assert "weights/vit.safetensors" in caught.value.hint


@pytest.mark.parametrize("size", [1, 1 << 20, (1 << 20) + 1, 5_000_000])
def test_tensors_are_complete_if_they_are_read_in_several_windows(tmp_path: Path, size: int) -> None:
    file, store = a_file(tmp_path), MemoryStore()
    tensors: dict[str, Any] = {f"t{number}": np.full(size + number, number, np.uint8) for number in range(4)}
    tensors["empty"] = np.zeros(0, np.uint8)
    save_file(tensors, file.path)
    table = file.table(digest(file.path), store)
    assert {name: weight.sha256 for name, weight in table.items()} == {
        name: hashlib.sha256(tensor.tobytes()).hexdigest() for name, tensor in tensors.items()
    }
    file.put_tensors(table, [weight.sha256 for weight in table.values()], store)
    assert all(store.get_bytes(table[name].sha256) == tensor.tobytes() for name, tensor in tensors.items())


def test_a_table_is_not_stored_under_the_digest_of_other_bytes(tmp_path: Path) -> None:
    """The file is replaced after its digest is computed and before its table is read."""
    file, store = a_file(tmp_path), MemoryStore()
    save_file({"a": np.zeros(3, dtype=np.float32)}, file.path)
    sha256 = digest(file.path)
    save_file({"a": np.ones(3, dtype=np.float32)}, file.path)
    with pytest.raises(SourceError, match="changed"):
        file.table(sha256, store)
    assert not store.records


def test_rejects_tensors_that_have_changed_since_the_table(tmp_path: Path) -> None:
    file, store = a_file(tmp_path), MemoryStore()
    save_file({"a": np.zeros(3, dtype=np.float32)}, file.path)
    table = file.table(digest(file.path), store)
    for name, value in (("a", 1), ("b", 0)):
        save_file({name: np.full(3, value, dtype=np.float32)}, file.path)
        with pytest.raises(SourceError, match="changed"):
            file.put_tensors(table, [table["a"].sha256], store)
    file.path.unlink()
    with pytest.raises(SourceError, match="cannot be read"):
        file.put_tensors(table, [table["a"].sha256], store)


def test_a_new_file_is_read_once_for_its_digest_and_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, store = a_file(tmp_path), MemoryStore()
    save_file({"a": np.arange(500_000, dtype=np.float32), "b": np.ones(3, dtype=np.float32)}, file.path)
    sha256, other = file.sha256(FileDigests(None)), a_file(tmp_path)
    assert sha256 == digest(file.path)
    expected = other.table(sha256, MemoryStore())
    with monkeypatch.context() as patch:
        patch.setattr(WeightsFile, "_read_table", None)  # a call raises TypeError
        assert file.table(sha256, store) == expected
        with pytest.raises(TypeError):
            other.table(sha256, MemoryStore())


def test_a_file_whose_digest_is_known_is_read_for_its_table(tmp_path: Path) -> None:
    file, store, digests = a_file(tmp_path), MemoryStore(), FileDigests(Index(tmp_path / "index"))
    save_file({"a": np.arange(500_000, dtype=np.float32)}, file.path)
    first = file.table(file.sha256(digests) or "", store)
    file.path.touch()
    second = a_file(tmp_path)
    assert second.table(second.sha256(digests) or "", MemoryStore()) == first


def test_a_header_that_changes_while_the_file_is_read_gives_no_table(tmp_path: Path) -> None:
    file, other = a_file(tmp_path), tmp_path / "other.safetensors"
    save_file({"a": np.arange(500_000, dtype=np.float32)}, file.path)
    save_file({"b": np.arange(500_000, dtype=np.float32)}, other)
    with open(file.path, "rb") as opened:
        table = file._begin_table(opened.fileno())
    table.update(memoryview(other.read_bytes()))
    assert table.weights() is None
    with open(file.path, "rb") as opened:
        table = file._begin_table(opened.fileno())
    table.update(memoryview(file.path.read_bytes())[:-1])
    assert table.weights() is None


def test_a_large_file_of_another_format_has_a_digest_but_no_table(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    file.path.write_bytes(b"garbage!" * 100_000)
    sha256 = file.sha256(FileDigests(None))
    assert sha256 == digest(file.path)
    with pytest.raises(SourceError, match="not a safetensors file"):
        file.table(sha256, MemoryStore())
