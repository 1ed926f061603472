"""`verify` finds every kind of damage, and `stats` counts entries and bytes. Both report an unreadable directory."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trtbuild.core.recipes.record import Record
from trtbuild.errors import StoreUnavailable
from trtbuild.store.collection import check
from trtbuild.store.collection.check import stats, verify
from trtbuild.store.local.layout import Kind, Layout, list_folder
from trtbuild.store.local.local import LocalStore
from trtbuild.store.trust.action_result import list_key

MIB = 1 << 20


@pytest.fixture
def record(local: LocalStore, record_of: Callable[..., Record], payload: Callable[..., bytes]) -> Record:
    """The only record of `local`. Its output `plan` is a blob with chunks, and its output `info` is a small blob."""
    large = local.put_bytes(payload(1, 3 * MIB))
    return local.put_record(record_of(1, plan=large, info=local.put_bytes(b"information")))


def entry_files(store: LocalStore) -> list[Path]:
    return [*store.root.glob("ac/??/*"), *store.root.glob("cas/??/*")]


def damage_file(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"!")


def test_finds_no_damage_in_an_intact_store(local: LocalStore, record: Record) -> None:
    report = verify(local)
    assert report.damage == ()
    assert (report.records, report.lists) == (1, 1)
    assert report.blobs == len(list(local.root.glob("cas/*/*")))
    assert report.bytes_read >= 3 * MIB


def test_verifying_does_not_count_as_use(local: LocalStore, record: Record, age: Callable[..., None]) -> None:
    age(local, 1000)
    before = {path: path.stat().st_mtime_ns for path in entry_files(local)}
    verify(local)
    assert {path: path.stat().st_mtime_ns for path in entry_files(local)} == before


@pytest.mark.parametrize("quarantine", [True, False])
def test_reports_a_damaged_chunk_and_all_entries_that_need_it(
    local: LocalStore, record: Record, entry_path: Callable[..., Path], quarantine: bool
) -> None:
    sha256 = record.outputs["plan"].sha256
    chunk = local.files_of(sha256)[1]
    damage_file(entry_path(local, "cas", chunk.sha256))
    report = verify(local, quarantine=quarantine)
    assert [(damage.kind, damage.name) for damage in report.damage] == [
        ("blob", chunk.sha256),
        ("chunk list", list_key(sha256)),
        ("record", record.recipe.key),
    ]
    assert len(list((local.root / "quarantine").iterdir())) == (3 if quarantine else 0)
    assert (verify(local).damage == ()) == quarantine


def test_reports_each_damage_of_a_record_entry(
    local: LocalStore, record: Record, entry_path: Callable[..., Path]
) -> None:
    path = entry_path(local, "ac", record.recipe.key)
    content = path.read_bytes()

    def damage_of(data: bytes) -> str:
        """The damage that `verify` reports for an entry with the bytes `data`."""
        path.chmod(0o644)
        path.write_bytes(data)
        (damage,) = verify(local, quarantine=False).damage
        assert str(damage).startswith(f"record {record.recipe.key}: ")
        return damage.text

    assert damage_of(b"{}")
    info = record.outputs["info"].sha256
    assert "not among its output files" in damage_of(content.replace(f"blob/{info}".encode(), b"other/info"))
    assert "neither" in damage_of(content.replace(b"record.json", b"other.json"))
    assert "lacks" in damage_of(content.replace(info.encode(), b"ab" * 32))


def test_reports_the_chunk_list_of_another_blob(
    local: LocalStore, record: Record, payload: Callable[..., bytes], entry_path: Callable[..., Path]
) -> None:
    sha256, other = record.outputs["plan"].sha256, local.put_bytes(payload(2, 3 * MIB)).sha256
    path = entry_path(local, "ac", list_key(sha256))
    path.chmod(0o644)
    path.write_text(entry_path(local, "ac", list_key(other)).read_text().replace(other, sha256))
    report = verify(local)
    assert [damage.kind for damage in report.damage] == ["chunk list", "record"]


def test_reports_a_record_under_another_key(local: LocalStore, record: Record, entry_path: Callable[..., Path]) -> None:
    entry_path(local, "ac", "ab" * 32).parent.mkdir(exist_ok=True)
    entry_path(local, "ac", "ab" * 32).write_bytes(entry_path(local, "ac", record.recipe.key).read_bytes())
    (damage,) = verify(local).damage
    assert (damage.name, damage.text) == ("ab" * 32, "it is the record of another key")


@pytest.mark.parametrize("moment", ["cas", "ac"])
def test_records_that_a_build_writes_meanwhile_are_not_damaged(
    local: LocalStore,
    record: Record,
    record_of: Callable[..., Record],
    payload: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    """The build writes its record, with a blob that has chunks and a small one, after the files of `moment` were listed.
    In the second case, the listing contains the record, but not the chunk list."""
    builder, list_entries = LocalStore(local.root), Layout.entries
    large = payload(2, 3 * MIB)

    def list_while_a_build_runs(layout: Layout, kind: Kind) -> Iterator[tuple[str, os.stat_result]]:
        listed = list(list_entries(layout, kind))
        if kind == moment:
            outputs = {"plan": builder.put_bytes(large), "info": builder.put_bytes(b"new")}
            built = builder.put_record(record_of(2, **outputs))
            if kind == "ac":
                listed += [entry for entry in list_entries(layout, kind) if entry[0] == built.recipe.key]
        yield from listed

    monkeypatch.setattr(Layout, "entries", list_while_a_build_runs)
    report = verify(local)
    assert report.damage == ()
    assert report.records == 2
    assert list((local.root / "quarantine").iterdir()) == []


def test_stats_counts_the_records_blobs_chunks_and_bytes_of_a_store(
    local: LocalStore, record_of: Callable[..., Record], payload: Callable[..., bytes]
) -> None:
    large, small = local.put_bytes(payload(1, 3 * MIB)), local.put_bytes(b"12345")
    for number in range(4):
        local.put_record(record_of(number, stage="convert" if number else "engine", plan=large, info=small))
    local.entries.quarantine("ac", record_of(0).recipe.key, "for the test")
    counts = stats(local)
    assert counts.records == {"convert": 3}, "the engine is in quarantine"
    assert counts.blobs == 2
    assert counts.chunks == len(local.files_of(large.sha256))
    assert counts.logical_bytes == 3 * (3 * MIB + 5)
    assert counts.stored_bytes == sum(path.stat().st_size for path in entry_files(local))
    assert counts.quarantine_entries == 1 and counts.quarantine_bytes > 0
    assert 2.5 < counts.dedup_ratio < 3.0, "three records share one plan; the records themselves take some bytes, too"


def test_stats_ignore_quarantined_files_that_vanish(
    local: LocalStore, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.entries.quarantine("ac", record.recipe.key, "for the test")
    removed: list[str] = []

    def list_and_remove(path: str) -> list[os.DirEntry[str]]:
        files = list_folder(path)
        for file in files:
            Path(file.path).unlink()
            removed.append(file.name)
        return files

    monkeypatch.setattr(check, "list_folder", list_and_remove)
    counts = stats(local)
    assert len(removed) == 1
    assert (counts.quarantine_entries, counts.quarantine_bytes) == (0, 0)


def test_an_empty_store_has_no_records_and_no_bytes(tmp_path: Path) -> None:
    counts = stats(LocalStore(tmp_path / "store"))
    assert (counts.records, counts.stored_bytes, counts.dedup_ratio) == ({}, 0, 1.0)


@pytest.mark.parametrize("examine", [stats, verify])
def test_an_unreadable_directory_is_an_error_and_not_an_empty_store(
    tmp_path: Path, local: LocalStore, record: Record, monkeypatch: pytest.MonkeyPatch, examine: Callable[..., object]
) -> None:
    (tmp_path / "file").write_text("not a store")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreUnavailable, match="Not a directory") as caught:
            LocalStore(root)
        assert caught.value.hint and "in its way" in caught.value.hint
    examine(LocalStore(tmp_path / "not there yet"))

    real_scandir, denied = os.scandir, []

    def forbidden(path: str) -> object:
        if path.endswith("/cas"):
            denied.append(path)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real_scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", forbidden)
        with pytest.raises(StoreUnavailable, match="Permission denied"):
            examine(local)
    assert denied
    local.root.joinpath("cas").rename(tmp_path / "away")
    local.root.joinpath("cas").write_text("in the way")
    with pytest.raises(StoreUnavailable, match="Not a directory"):
        examine(local)
