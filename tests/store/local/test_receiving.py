"""Files that arrive from another store: when they appear, when they are durable, and which files remain after an error."""

from __future__ import annotations

import hashlib
import os
import random
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from trtbuild.core.recipes.record import Output
from trtbuild.errors import BlobMissing, EntryCorrupt, StoreUnavailable
from trtbuild.store.collection.check import verify
from trtbuild.store.collection.collect import collect
from trtbuild.store.local import publication
from trtbuild.store.local.local import LocalStore
from trtbuild.store.trust import action_result


def random_chunks(count: int) -> dict[Output, bytes]:
    """`count` chunks of 5000 bytes: `Output` (digest and size) → bytes."""
    generator = random.Random(count)
    return {output_of(data): data for data in (generator.randbytes(5000) for _ in range(count))}


def output_of(data: bytes) -> Output:
    return Output(hashlib.sha256(data).hexdigest(), len(data))


def digest_of(chunks: dict[Output, bytes]) -> str:
    """The SHA-256 of the blob that consists of these chunks."""
    return output_of(b"".join(chunks.values())).sha256


def receive(store: LocalStore, chunks: dict[Output, bytes]) -> None:
    with store.receive_files() as receiver:
        for chunk, data in chunks.items():
            receiver.put(chunk, data)


def unfinished_files(store: LocalStore) -> list[Path]:
    return list((store.root / "tmp").iterdir())


def test_joins_received_chunks_to_a_blob(local: LocalStore) -> None:
    chunks = random_chunks(150)
    with local.session():
        receive(local, chunks)
        assert local.join_chunks(digest_of(chunks), list(chunks), verified=True) == output_of(b"".join(chunks.values()))
    assert local.get_bytes(digest_of(chunks)) == b"".join(chunks.values())
    assert unfinished_files(local) == [] and verify(local).damage == ()


def test_a_new_receiver_finds_files_of_an_earlier_one(local: LocalStore) -> None:
    chunks = random_chunks(70)
    first, second, *_ = chunks
    receive(local, {first: chunks[first]})
    with local.receive_files() as receiver:
        assert receiver.has(first) and not receiver.has(second)
        assert receiver.present_files(chunks) == {first}
        assert not receiver.has(Output(first.sha256, first.size + 1))


def test_a_found_file_is_protected_from_collection(local: LocalStore, age: Callable[..., None]) -> None:
    chunks = random_chunks(3)
    receive(local, chunks)
    age(local, 1000)
    first, *_ = chunks
    with local.session():
        with local.receive_files() as receiver:
            assert receiver.has(first)
        collect(local, max_age_s=500)
        with local.receive_files() as receiver:
            assert receiver.present_files(chunks) == {first}


def test_many_threads_put_each_file_once(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = random_chunks(300)
    renames: list[str] = []
    rename = os.rename

    def rename_and_count(old: str, new: str) -> None:
        rename(old, new)
        renames.append(new)  # only after a rename without an error

    monkeypatch.setattr(os, "rename", rename_and_count)
    with ThreadPoolExecutor(8) as threads, local.receive_files() as receiver:
        list(threads.map(lambda pair: receiver.put(*pair), [*chunks.items(), *chunks.items()]))
    assert sorted(path[-64:] for path in renames if "/cas/" in path) == sorted(chunk.sha256 for chunk in chunks)
    local.join_chunks(digest_of(chunks), list(chunks))
    assert unfinished_files(local) == []


def test_a_file_is_synced_before_it_appears_and_its_directory_before_the_end(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, Any]] = []
    sync, rename = os.fsync, os.rename

    def record_sync(descriptor: int) -> None:
        events.append(("sync", os.fstat(descriptor).st_ino))
        sync(descriptor)

    def record_rename(old: str, new: str) -> None:
        events.append(("rename", Path(old).stat().st_ino))
        events.append(("changed", Path(new).parent.stat().st_ino))
        rename(old, new)

    chunks = random_chunks(130)
    receive(local, {output_of(b"a"): b"a"})  # creates the directories
    for prefix in {chunk.sha256[:2] for chunk in chunks}:
        (local.root / "cas" / prefix).mkdir(exist_ok=True)
    monkeypatch.setattr(publication.os, "fsync", record_sync)
    monkeypatch.setattr(publication.os, "rename", record_rename)
    receive(local, chunks)
    renamed = [inode for event, inode in events if event == "rename"]
    assert len(renamed) == 130
    for inode in renamed:
        assert events.index(("sync", inode)) < events.index(("rename", inode))
    for position, (event, inode) in enumerate(events):
        if event == "changed":
            assert ("sync", inode) in events[position:]


def test_keeps_files_that_were_received_before_an_error(local: LocalStore) -> None:
    chunks = random_chunks(70)

    def receive_until_error() -> None:
        with local.receive_files() as receiver:
            for chunk, data in list(chunks.items())[:69]:
                receiver.put(chunk, data)
            raise RuntimeError("the connection is gone")

    with pytest.raises(RuntimeError, match="the connection is gone"):
        receive_until_error()
    assert unfinished_files(local) == []
    with local.receive_files() as receiver:
        assert len(receiver.present_files(chunks)) == 69


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_full_disk_is_an_error_and_leaves_no_unfinished_files(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    chunks = random_chunks(100)
    receive(local, {output_of(b"a"): b"a"})
    real_call, calls = getattr(os, call), []

    def full(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 75:
            raise OSError(28, "No space left on device")
        return real_call(*arguments)

    monkeypatch.setattr(publication.os, call, full)
    with pytest.raises(StoreUnavailable, match="No space left") as caught:
        receive(local, chunks)
    assert "free some space" in (caught.value.hint or "") and len(calls) >= 75
    monkeypatch.undo()
    assert unfinished_files(local) == [] and verify(local).damage == ()
    assert open_files_below(local.root) == []
    receive(local, chunks)
    local.join_chunks(digest_of(chunks), list(chunks))


def open_files_below(root: Path) -> list[str]:
    targets = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    return [target for target in targets if target.startswith(str(root))]


def test_works_without_sync_file_range(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "_sync_file_range", lambda: None)
    chunks = random_chunks(70)
    receive(local, chunks)
    local.join_chunks(digest_of(chunks), list(chunks))


def test_join_verifies_the_blob_unless_it_was_verified(local: LocalStore, entry_path: Callable[..., Path]) -> None:
    chunks = random_chunks(3)
    receive(local, chunks)
    with pytest.raises(EntryCorrupt, match="not blob"):
        local.join_chunks("ab" * 32, list(chunks))
    path = entry_path(local, "cas", next(iter(chunks)).sha256)
    path.chmod(0o644)
    path.write_bytes(bytes(5000))
    local.join_chunks(digest_of(chunks), list(chunks), verified=True)
    with pytest.raises(EntryCorrupt):  # a read always verifies the bytes, even after ``verified=True``
        local.get_bytes(digest_of(chunks))


def test_join_reports_missing_chunks(local: LocalStore) -> None:
    chunks = random_chunks(3)
    receive(local, dict(list(chunks.items())[1:]))
    with pytest.raises(BlobMissing, match=next(iter(chunks)).sha256):
        local.join_chunks(digest_of(chunks), list(chunks), verified=True)


def test_does_not_write_an_existing_list_again(local: LocalStore, entry_path: Callable[..., Path]) -> None:
    chunks = random_chunks(3)
    receive(local, chunks)
    local.join_chunks(digest_of(chunks), list(chunks), verified=True)
    path = entry_path(local, "ac", action_result.list_key(digest_of(chunks)))
    before = path.stat().st_ino
    local.join_chunks(digest_of(chunks), list(chunks), verified=True)
    assert path.stat().st_ino == before


KILLED_PROGRAM = """
import os, random, signal, sys
from trtbuild.core.recipes.record import Output
import hashlib
from trtbuild.store.local.local import LocalStore
store, received_count = LocalStore(sys.argv[1]), int(sys.argv[2])
generator = random.Random(1)
print("ready", flush=True)
with store.session(), store.receive_files() as receiver:
    for index in range(400):
        if index == received_count:
            os.kill(os.getpid(), signal.SIGKILL)
        data = generator.randbytes(5000)
        receiver.put(Output(hashlib.sha256(data).hexdigest(), 5000), data)
"""


@pytest.mark.parametrize("received_count", [1, 64, 399])
def test_a_receiver_may_be_killed(tmp_path: Path, child: Callable[..., Any], received_count: int) -> None:
    root = tmp_path / "store"
    writer = child(KILLED_PROGRAM, root, received_count)
    assert writer.read_line() == "ready"
    writer.process.wait(30)
    assert writer.process.returncode == -signal.SIGKILL
    store = LocalStore(root)
    assert verify(store).damage == ()
    generator = random.Random(1)
    with store.receive_files() as receiver:
        found = receiver.present_files(output_of(generator.randbytes(5000)) for _ in range(400))
    # files that were written but not yet synced may be lost
    assert received_count - publication._MAX_OPEN_FILES <= len(found) <= received_count
