"""The layout of the local store's directory, and the handling of damaged files in it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.errors import BlobMissing, EntryCorrupt, StoreUnavailable
from trtbuild.store.local.local import LocalStore
from trtbuild.store.trust.action_result import list_key

MIB = 1 << 20
EntryPath = Callable[[LocalStore, str, str], Path]


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "flipped": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "truncated": lambda data: data[: len(data) // 2],
    "extended": lambda data: data + b"x",
    "emptied": lambda data: b"",
}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_layout_of_the_directory(
    local: LocalStore, record_of: Callable[..., Record], entry_path: EntryPath
) -> None:
    small = local.put_bytes(b"small")
    large = local.put_bytes(bytes(2 * MIB + 5))
    record = local.put_record(record_of(1, info=small, plan=large))
    assert (local.root / "format").read_text() == "trtbuild.store/1\n"
    assert names(local.root) == ["ac", "cas", "format", "locks", "quarantine", "sessions", "tmp"]
    assert entry_path(local, "cas", small.sha256).read_bytes() == b"small"
    assert not entry_path(local, "cas", large.sha256).exists()
    listed = json.loads(entry_path(local, "ac", list_key(large.sha256)).read_bytes())
    assert [file["digest"]["sizeBytes"] for file in listed["outputFiles"]] == [str(MIB), str(MIB), "5"]
    entry = json.loads(entry_path(local, "ac", record.recipe.key).read_bytes())
    assert [file["path"] for file in entry["outputFiles"]] == [
        "record.json",
        f"blob/{small.sha256}",
        *(f"blob/{large.sha256}/{number}" for number in range(3)),
    ]
    for file in entry["outputFiles"]:
        stored = entry_path(local, "cas", file["digest"]["hash"])
        assert stored.stat().st_size == int(file["digest"]["sizeBytes"])
    assert names(local.root / "tmp") == names(local.root / "sessions") == []


def test_equal_chunks_are_stored_once(local: LocalStore) -> None:
    local.put_bytes(bytes(50 * MIB))
    assert len(list(local.root.glob("cas/*/*"))) == 1


def test_reading_creates_no_files(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    assert not store.has("ab" * 32)
    assert store.get_record("ab" * 32) is None
    assert not store.root.exists()


@pytest.mark.parametrize("damage", DAMAGES)
def test_rejects_and_repairs_a_damaged_small_blob(local: LocalStore, entry_path: EntryPath, damage: str) -> None:
    output = local.put_bytes(b"the bytes")
    path = entry_path(local, "cas", output.sha256)
    overwrite(path, DAMAGES[damage](b"the bytes"))
    with pytest.raises(BlobMissing if damage == "emptied" else EntryCorrupt):
        local.get_bytes(output.sha256)
    if damage != "emptied":
        assert not path.exists()
        assert len(names(local.root / "quarantine")) == 1
    assert not local.has(output.sha256)
    assert local.put_bytes(b"the bytes") == output
    assert local.get_bytes(output.sha256) == b"the bytes"


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("reading", ["get_bytes", "copy_to"])
def test_rejects_and_repairs_a_damaged_chunk(
    local: LocalStore, payload: Callable[..., bytes], entry_path: EntryPath, damage: str, reading: str, tmp_path: Path
) -> None:
    data = payload(1, 3 * MIB)
    output = local.put_bytes(data)
    chunk = local.files_of(output.sha256)[3]
    path = entry_path(local, "cas", chunk.sha256)
    overwrite(path, DAMAGES[damage](path.read_bytes()))
    with pytest.raises(EntryCorrupt if damage == "flipped" else BlobMissing):
        if reading == "get_bytes":
            local.get_bytes(output.sha256)
        else:
            local.copy_to(output.sha256, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    if damage == "flipped":  # a chunk of another size counts as missing
        assert [name.split("-")[1] for name in names(local.root / "quarantine")] == [chunk.sha256]
    assert not local.has(output.sha256)
    assert local.put_bytes(data) == output  # this repairs the chunk
    assert local.get_bytes(output.sha256) == data


def test_rejects_a_chunk_that_shrinks_after_it_was_found(
    local: LocalStore, entry_path: EntryPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = local.put_bytes(bytes(3 * MIB))
    chunks = local.files_of(output.sha256)
    overwrite(entry_path(local, "cas", chunks[0].sha256), b"short")
    monkeypatch.setattr(LocalStore, "files_of", lambda self, sha256: chunks)
    with pytest.raises(EntryCorrupt):
        local.get_bytes(output.sha256)
    assert len(names(local.root / "quarantine")) == 1


@pytest.mark.parametrize("damage", [*DAMAGES, "of another blob"])
def test_rejects_and_repairs_a_damaged_chunk_list(
    local: LocalStore, payload: Callable[..., bytes], entry_path: EntryPath, damage: str
) -> None:
    data = payload(1, 3 * MIB)
    output, other = local.put_bytes(data), local.put_bytes(payload(2, 3 * MIB))
    path, other_path = (entry_path(local, "ac", list_key(blob.sha256)) for blob in (output, other))
    overwrite(path, other_path.read_bytes() if damage == "of another blob" else DAMAGES[damage](path.read_bytes()))
    assert not local.has(output.sha256)
    with pytest.raises(BlobMissing):
        local.get_bytes(output.sha256)
    assert local.put_bytes(data) == output
    assert local.get_bytes(output.sha256) == data


def test_rejects_a_forged_chunk_list(local: LocalStore, payload: Callable[..., bytes], entry_path: EntryPath) -> None:
    """The list is valid and its chunks are intact, but they are the chunks of another blob."""
    output, other = local.put_bytes(payload(1, 3 * MIB)), local.put_bytes(payload(2, 3 * MIB))
    text = entry_path(local, "ac", list_key(other.sha256)).read_text().replace(other.sha256, output.sha256)
    path = entry_path(local, "ac", list_key(output.sha256))
    overwrite(path, text.encode())
    with pytest.raises(EntryCorrupt):
        local.get_bytes(output.sha256)
    assert not path.exists()
    assert local.get_bytes(other.sha256) == payload(2, 3 * MIB)


@pytest.mark.parametrize("damage", DAMAGES)
def test_rejects_and_repairs_a_damaged_record_entry(
    local: LocalStore, record_of: Callable[..., Record], entry_path: EntryPath, damage: str
) -> None:
    record = local.put_record(record_of(1, plan=local.put_bytes(b"plan")))
    path = entry_path(local, "ac", record.recipe.key)
    overwrite(path, DAMAGES[damage](path.read_bytes()))
    if damage == "emptied":
        assert local.get_record(record.recipe.key) is None
    else:
        with pytest.raises(EntryCorrupt):
            local.get_record(record.recipe.key)
        assert not path.exists()
    assert local.get_record(record.recipe.key) is None
    assert local.put_record(record) == record
    assert local.get_record(record.recipe.key) == record


@pytest.mark.parametrize("damage", DAMAGES)
def test_rejects_and_repairs_a_damaged_record_document(
    local: LocalStore, record_of: Callable[..., Record], entry_path: EntryPath, damage: str
) -> None:
    record = local.put_record(record_of(1, plan=local.put_bytes(b"plan")))
    action = local.get_action(record.recipe.key)
    assert action is not None and action.document is not None
    path = entry_path(local, "cas", action.document.sha256)
    overwrite(path, DAMAGES[damage](path.read_bytes()))
    if damage != "emptied":
        with pytest.raises(EntryCorrupt):
            local.get_record(record.recipe.key)
    assert local.get_record(record.recipe.key) is None
    assert local.put_record(record) == record
    assert local.get_record(record.recipe.key) == record


def test_rejects_the_record_of_another_key(
    local: LocalStore, record_of: Callable[..., Record], entry_path: EntryPath
) -> None:
    first, second = local.put_record(record_of(1)), local.put_record(record_of(2))
    overwrite(entry_path(local, "ac", first.recipe.key), entry_path(local, "ac", second.recipe.key).read_bytes())
    with pytest.raises(EntryCorrupt, match="another key"):
        local.get_record(first.recipe.key)
    assert local.get_record(second.recipe.key) == second


def test_a_chunk_list_is_not_a_record(local: LocalStore) -> None:
    output = local.put_bytes(bytes(3 * MIB))
    with pytest.raises(EntryCorrupt):
        local.get_record(list_key(output.sha256))


def test_a_record_with_a_missing_blob_is_replaced(
    local: LocalStore, record_of: Callable[..., Record], entry_path: EntryPath
) -> None:
    """A new engine of the same step has other bytes. The record of the lost engine must not block the new record."""
    first = local.put_record(record_of(1, plan=local.put_bytes(b"first")))
    entry_path(local, "cas", first.outputs["plan"].sha256).unlink()
    second = record_of(1, plan=local.put_bytes(b"second"))
    assert local.put_record(second) == second
    assert local.get_record(first.recipe.key) == second


def test_an_entry_that_was_repaired_meanwhile_is_not_moved_to_quarantine(local: LocalStore) -> None:
    output = local.put_bytes(b"right")
    local.entries.quarantine("cas", output.sha256, "wrong bytes were read before the repair")
    assert local.get_bytes(output.sha256) == b"right"


def test_the_log_says_whether_an_entry_is_in_quarantine(
    local: LocalStore, entry_path: EntryPath, caplog: pytest.LogCaptureFixture
) -> None:
    path = entry_path(local, "cas", local.put_bytes(b"right").sha256)
    path.chmod(0o644)
    path.write_bytes(b"wrong")
    (local.root / "quarantine").rmdir()
    local.entries.quarantine("cas", path.name, "its bytes are wrong")
    assert path.exists() and "cannot be moved to quarantine: No such file or directory" in caplog.text
    assert "quarantined" not in caplog.text
    (local.root / "quarantine").mkdir()
    local.entries.quarantine("cas", path.name, "its bytes are wrong")
    assert not path.exists() and f"quarantined {path}: its bytes are wrong" in caplog.text


@pytest.mark.parametrize("text", ["trtbuild.store/2\n", "trtbuild.store/99", "something else", ""])
def test_rejects_another_format(local: LocalStore, text: str) -> None:
    local.put_bytes(b"x")
    (local.root / "format").write_text(text)
    with pytest.raises(StoreUnavailable) as caught:
        LocalStore(local.root)
    assert ("upgrade trtbuild" in str(caught.value.hint)) == text.startswith("trtbuild.store/")


def test_join_verifies_the_chunks_and_their_order(
    local: LocalStore, payload: Callable[..., bytes], tmp_path: Path
) -> None:
    data, other = payload(1, 3 * MIB), LocalStore(tmp_path / "other")
    output = other.put_bytes(data)
    chunks = other.files_of(output.sha256)
    with pytest.raises(BlobMissing):
        local.join_chunks(output.sha256, chunks)
    for chunk in chunks:
        local.put_bytes(other.get_bytes(chunk.sha256))
    with pytest.raises(EntryCorrupt):
        local.join_chunks(output.sha256, chunks[::-1])
    assert not local.has(output.sha256)
    assert local.join_chunks(output.sha256, chunks) == output
    assert local.get_bytes(output.sha256) == data


def test_rejects_names_that_are_not_digests(local: LocalStore) -> None:
    for name in ("../../../../etc/passwd", "A" * 64, "", "ab" * 31):
        with pytest.raises(ValueError):
            local.has(name)


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    # With the umask 002, the group may write to the directories, so the files get the permissions of a shared store.
    for umask, mode in ((0o022, 0o444), (0o077, 0o400), (0o002, 0o664)):
        before = os.umask(umask)
        try:
            store = LocalStore(tmp_path / f"{umask:o}")
            store.put_bytes(b"x")
            (path,) = store.root.glob("cas/*/*")
            assert path.stat().st_mode & 0o777 == mode
            assert path.parent.stat().st_mode & 0o777 == 0o777 & ~umask
            store.copy_to(path.name, str(tmp_path / f"out{umask:o}"))
            assert (tmp_path / f"out{umask:o}").stat().st_mode & 0o777 == 0o666 & ~umask
        finally:
            os.umask(before)


READER_PROGRAM = """
import os, sys
from trtbuild.errors import StoreUnavailable
from trtbuild.store.local.local import LocalStore
if os.getuid() == 0:
    os.setgid(65534), os.setuid(65534)  # root may write everywhere
root, sha256, key = sys.argv[1:]
assert not os.access(root + "/tmp", os.W_OK)
store = LocalStore(root)
with store.session():
    assert store.has(sha256)
    assert len(store.get_bytes(sha256)) == 3 << 20
    assert store.get_record(key).recipe.key == key
for write in (lambda: store.put_bytes(b"new"), lambda: store.building(key).__enter__()):
    try:
        write()
    except StoreUnavailable as error:
        assert "TRTBUILD_CACHE_DIR" in error.hint, error.hint
    else:
        raise AssertionError("the store was written")
print("read")
"""


def test_reads_a_store_that_cannot_be_written(
    child: Callable[..., Any], record_of: Callable[..., Record], open_to_all: Path
) -> None:
    store = LocalStore(open_to_all / "store")
    output = store.put_bytes(bytes(3 * MIB))
    record = store.put_record(record_of(1, plan=output))
    folders = [path for path in [store.root, *store.root.rglob("*")] if path.is_dir()]
    for path in folders:
        path.chmod(0o555)
    printed = child(READER_PROGRAM, store.root, output.sha256, record.recipe.key).finish()
    for path in folders:
        path.chmod(0o755)  # so that the fixture can remove the directories
    assert printed.strip() == "read"


def test_creates_removed_directories_again(local: LocalStore) -> None:
    local.put_bytes(b"x")
    shutil.rmtree(local.root)
    output = local.put_bytes(b"x")
    assert local.get_bytes(output.sha256) == b"x"


def test_the_digest_of_an_empty_blob(local: LocalStore) -> None:
    sha256_of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert local.put_bytes(b"") == Output(sha256_of_nothing, 0)


def test_after_begin_read_only_no_entry_is_touched_until_the_first_put(tmp_path: Path) -> None:
    writer = LocalStore(tmp_path / "store")
    output = writer.put_bytes(b"a blob")
    record = writer.put_record(Record(Recipe("engine", 1, (("part", "a"),)), {"plan": output}))
    entries = [path for path in (tmp_path / "store").rglob("*") if path.is_file() and path.parent.name != "locks"]
    for path in entries:
        os.utime(path, ns=(10**18, 10**18))

    def touched() -> list[Path]:
        return [path for path in entries if path.exists() and path.stat().st_mtime_ns != 10**18]

    reader = LocalStore(tmp_path / "store")
    reader.begin_read_only()
    assert reader.get_record(record.recipe.key) == record
    assert reader.has(output.sha256)
    assert reader.has_records([record.recipe.key]) == {record.recipe.key}
    assert touched() == []
    reader.put_bytes(b"a blob")
    assert reader.has(output.sha256)
    assert touched() != []


def test_finds_a_record_that_is_larger_than_a_chunk(local: LocalStore) -> None:
    """A record's document is always one file."""
    blob = local.put_bytes(b"plan")
    recipe = Recipe("package", 1, (("many", ["x" * 60] * 40_000),))
    local.put_record(Record(recipe, {"index": blob}))
    found = LocalStore(local.root).get_record(recipe.key)
    assert found is not None
    assert len(found.to_bytes()) > 2 << 20
