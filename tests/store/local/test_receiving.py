"""CAS files that come from another store: when they appear, what is durable when, and what an error leaves."""

from __future__ import annotations

import hashlib
import os
import random
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


def pieces(count: int, size: int = 5000) -> dict[Output, bytes]:
    generator = random.Random(count)
    return {named(data): data for data in (generator.randbytes(size) for _ in range(count))}


def named(data: bytes) -> Output:
    return Output(hashlib.sha256(data).hexdigest(), len(data))


def whole(chunks: dict[Output, bytes]) -> str:
    return named(b"".join(chunks.values())).sha256


def bring(store: LocalStore, chunks: dict[Output, bytes]) -> None:
    with store.receiving() as receipt:
        for part, data in chunks.items():
            receipt.put(part, data)


def left_over(store: LocalStore) -> list[Path]:
    return list((store.root / "tmp").iterdir())


def test_received_chunks_are_a_blob(local: LocalStore) -> None:
    chunks = pieces(150)
    with local.session():
        bring(local, chunks)
        assert local.join(whole(chunks), list(chunks), verified=True) == named(b"".join(chunks.values()))
    assert local.get_bytes(whole(chunks)) == b"".join(chunks.values())
    assert left_over(local) == [] and verify(local).damage == ()


def test_a_new_receipt_finds_what_an_earlier_one_brought(local: LocalStore) -> None:
    chunks = pieces(70)
    first, *others = chunks
    bring(local, {first: chunks[first]})
    with local.receiving() as receipt:
        assert receipt.has(first) and not receipt.has(others[0])
        assert receipt.found(chunks) == {first}
        assert not receipt.has(Output(first.sha256, first.size + 1))


def test_a_found_file_is_touched_unless_the_session_is_younger(local: LocalStore, age: Callable[..., None]) -> None:
    chunks = pieces(3)
    bring(local, chunks)
    age(local, 1000)
    first, *_ = chunks
    with local.session():
        with local.receiving() as receipt:
            assert receipt.has(first)
        collect(local, max_age_s=500)
        with local.receiving() as receipt:
            assert receipt.found(chunks) == {first}


def test_many_threads_put_each_file_once(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = pieces(300)
    renames: list[str] = []
    rename = os.rename
    monkeypatch.setattr(os, "rename", lambda old, new: (rename(old, new), renames.append(new)))
    with ThreadPoolExecutor(8) as threads, local.receiving() as receipt:
        list(threads.map(lambda pair: receipt.put(*pair), [*chunks.items(), *chunks.items()]))
    assert sorted(path[-64:] for path in renames if "/cas/" in path) == sorted(part.sha256 for part in chunks)
    local.join(whole(chunks), list(chunks))
    assert left_over(local) == []


def test_a_file_is_synced_before_it_appears_and_its_directory_before_the_end(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, Any]] = []
    sync, rename = os.fsync, os.rename

    def synced(descriptor: int) -> None:
        done.append(("sync", os.fstat(descriptor).st_ino))
        sync(descriptor)

    def renamed(old: str, new: str) -> None:
        done.append(("rename", Path(old).stat().st_ino))
        done.append(("changed", Path(new).parent.stat().st_ino))
        rename(old, new)

    chunks = pieces(130)
    bring(local, {named(b"a"): b"a"})  # the directories are there
    for shelf in {part.sha256[:2] for part in chunks}:
        (local.root / "cas" / shelf).mkdir(exist_ok=True)
    monkeypatch.setattr(publication.os, "fsync", synced)
    monkeypatch.setattr(publication.os, "rename", renamed)
    bring(local, chunks)
    appeared = [inode for what, inode in done if what == "rename"]
    assert len(appeared) == 130
    for inode in appeared:
        assert done.index(("sync", inode)) < done.index(("rename", inode))
    for position, (what, inode) in enumerate(done):
        if what == "changed":
            assert ("sync", inode) in done[position:]


def test_an_error_keeps_what_came_before_it(local: LocalStore) -> None:
    chunks = pieces(70)

    def break_off() -> None:
        with local.receiving() as receipt:
            for part, data in list(chunks.items())[:69]:
                receipt.put(part, data)
            raise RuntimeError("the connection is gone")

    with pytest.raises(RuntimeError, match="the connection is gone"):
        break_off()
    assert left_over(local) == []
    with local.receiving() as receipt:
        assert len(receipt.found(chunks)) == 69


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_full_disk_is_an_error_and_leaves_no_files(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    chunks = pieces(100)
    bring(local, {named(b"a"): b"a"})
    real, calls = getattr(os, call), []

    def full(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 75:
            raise OSError(28, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(publication.os, call, full)
    with pytest.raises(StoreUnavailable, match="No space left") as told:
        bring(local, chunks)
    assert "free some space" in (told.value.hint or "") and len(calls) >= 75
    monkeypatch.undo()
    assert left_over(local) == [] and verify(local).damage == ()
    assert open_files_below(local.root) == []
    bring(local, chunks)
    local.join(whole(chunks), list(chunks))


def open_files_below(root: Path) -> list[str]:
    targets = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    return [target for target in targets if target.startswith(str(root))]


def test_without_a_system_call_of_linux_it_is_only_slower(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "_sync_file_range", lambda: None)
    chunks = pieces(70)
    bring(local, chunks)
    local.join(whole(chunks), list(chunks))


def test_join_reads_the_chunks_unless_the_whole_was_verified(
    local: LocalStore, entry_path: Callable[..., Path]
) -> None:
    chunks = pieces(3)
    bring(local, chunks)
    with pytest.raises(EntryCorrupt, match="not blob"):
        local.join("ab" * 32, list(chunks))
    path = entry_path(local, "cas", next(iter(chunks)).sha256)
    path.chmod(0o644)
    path.write_bytes(bytes(5000))
    local.join(whole(chunks), list(chunks), verified=True)
    with pytest.raises(EntryCorrupt):  # a read verifies the bytes, also after ``verified=True``
        local.get_bytes(whole(chunks))


def test_join_reports_missing_chunks(local: LocalStore) -> None:
    chunks = pieces(3)
    bring(local, dict(list(chunks.items())[1:]))
    with pytest.raises(BlobMissing, match=next(iter(chunks)).sha256):
        local.join(whole(chunks), list(chunks), verified=True)


def test_a_list_that_is_there_is_not_written_again(local: LocalStore, entry_path: Callable[..., Path]) -> None:
    chunks = pieces(3)
    bring(local, chunks)
    local.join(whole(chunks), list(chunks), verified=True)
    path = entry_path(local, "ac", action_result.list_key(whole(chunks)))
    before = path.stat().st_ino
    local.join(whole(chunks), list(chunks), verified=True)
    assert path.stat().st_ino == before


KILLED = """
import os, random, signal, sys
from trtbuild.core.recipes.record import Output
import hashlib
from trtbuild.store.local.local import LocalStore
store, number = LocalStore(sys.argv[1]), int(sys.argv[2])
generator = random.Random(1)
print("ready", flush=True)
with store.session(), store.receiving() as receipt:
    for index in range(400):
        if index == number:
            os.kill(os.getpid(), signal.SIGKILL)
        data = generator.randbytes(5000)
        receipt.put(Output(hashlib.sha256(data).hexdigest(), 5000), data)
"""


@pytest.mark.parametrize("number", [1, 64, 399])
def test_killed_while_receiving(tmp_path: Path, child: Callable[..., Any], number: int) -> None:
    root = tmp_path / "store"
    writer = child(KILLED, root, number)
    assert writer.line() == "ready"
    writer.process.wait(30)
    assert writer.process.returncode == -9
    store = LocalStore(root)
    assert verify(store).damage == ()
    generator = random.Random(1)
    with store.receiving() as receipt:
        found = receipt.found(named(generator.randbytes(5000)) for _ in range(400))
    # what was written and not yet synced is lost
    assert number - publication._OPEN <= len(found) <= number
    collect(store, max_size=1 << 30)
