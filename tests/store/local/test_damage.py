"""A store never returns wrong bytes if an entry is damaged, or is not a file. Writing the entry again repairs the store."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.damages import DAMAGES
from trtbuild.core.recipes.record import Record
from trtbuild.errors import BlobMissing, EntryCorrupt, StoreUnavailable
from trtbuild.store.collection.check import verify
from trtbuild.store.collection.collect import collect
from trtbuild.store.local.local import LocalStore
from trtbuild.store.trust.action_result import list_key

MIB = 1 << 20

KINDS = ["small blob", "chunk", "chunk list", "record entry", "document"]


@pytest.fixture
def put_and_choose(
    local: LocalStore, record_of: Callable[..., Record], payload: Callable[..., bytes], entry_path: Callable[..., Path]
) -> Callable[[str], tuple[Record, Path]]:
    """A function that puts a record. It returns the record, and the path of one of its entries, chosen by its kind."""

    def choose(kind: str) -> tuple[Record, Path]:
        plan, info = local.put_bytes(payload(1, 2 * MIB)), local.put_bytes(b"information")
        record = local.put_record(record_of(1, plan=plan, info=info))
        action = local.get_action(record.recipe.key)
        assert action is not None and action.document is not None
        kind_and_name = {
            "small blob": ("cas", info.sha256),
            "chunk": ("cas", local.files_of(plan.sha256)[1].sha256),
            "chunk list": ("ac", list_key(plan.sha256)),
            "record entry": ("ac", record.recipe.key),
            "document": ("cas", action.document.sha256),
        }[kind]
        return record, entry_path(local, *kind_and_name)

    return choose


def is_complete(store: LocalStore, record: Record, contents: dict[str, bytes], out: Path) -> bool:
    """Whether the record is complete. Checks that everything that the store returns is correct."""
    try:
        found = store.get_record(record.recipe.key)
        if found is None:
            return False
        assert found == record
        for name, output in found.outputs.items():
            assert store.get_bytes(output.sha256) == contents[name]
            store.copy_to(output.sha256, str(out))
            assert out.read_bytes() == contents[name]
    except (BlobMissing, EntryCorrupt):
        return False
    return True


def assert_repaired(store: LocalStore, record: Record, contents: dict[str, bytes], out: Path) -> None:
    """Check that the record is complete after its blobs and the record were put again."""
    for _ in range(4):  # because `is_complete` finds (and quarantines) one damaged entry at a time
        if is_complete(store, record, contents, out):
            break
        for data in contents.values():
            store.put_bytes(data)
        store.put_record(record)
    assert is_complete(store, record, contents, out)
    assert verify(store).damage == ()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_never_returns_a_damaged_entry_and_repairs_it(
    local: LocalStore,
    put_and_choose: Callable[[str], tuple[Record, Path]],
    payload: Callable[..., bytes],
    tmp_path: Path,
    kind: str,
    damage: str,
) -> None:
    record, path = put_and_choose(kind)
    intact = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(DAMAGES[damage](intact))
    assert path.read_bytes() != intact
    contents = {"plan": payload(1, 2 * MIB), "info": b"information"}
    is_usable = is_complete(LocalStore(local.root), record, contents, tmp_path / "out")
    if kind != "record entry":  # in a record entry, a changed bit may be harmless
        is_harmless = kind == "chunk list" and damage == "a newline long"  # white space at the end of JSON
        assert is_usable == is_harmless
    if is_usable:
        verify(local)  # `verify` can quarantine an entry that a reader accepts
    assert_repaired(LocalStore(local.root), record, contents, tmp_path / "out")


NOT_FILES: dict[str, Callable[[Path], object]] = {
    "a directory": lambda path: (path.mkdir(), (path / "inner").write_bytes(b"x")),
    "a pipe": lambda path: os.mkfifo(path),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link elsewhere": lambda path: path.symlink_to("/etc/passwd"),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("replacement", NOT_FILES)
@pytest.mark.parametrize("kind", KINDS)
def test_quarantines_entries_that_are_not_files(
    local: LocalStore,
    put_and_choose: Callable[[str], tuple[Record, Path]],
    payload: Callable[..., bytes],
    tmp_path: Path,
    kind: str,
    replacement: str,
) -> None:
    record, path = put_and_choose(kind)
    path.unlink()
    NOT_FILES[replacement](path)
    before = Path("/etc/passwd").stat().st_mtime_ns
    contents = {"plan": payload(1, 2 * MIB), "info": b"information"}
    verify(local, quarantine=False)  # `verify` and `collect` do not fail, and do not follow links
    collect(local)
    assert not is_complete(LocalStore(local.root), record, contents, tmp_path / "out")
    assert_repaired(LocalStore(local.root), record, contents, tmp_path / "out")
    assert Path("/etc/passwd").stat().st_mtime_ns == before, "nothing is touched through a link"
    assert any((local.root / "quarantine").iterdir())
    assert collect(local, quarantine_age_s=-60.0).leftovers_removed > 0  # every entry of the quarantine counts as old
    assert not any((local.root / "quarantine").iterdir())


@pytest.mark.parametrize("name", ["tmp", "locks", "sessions", "quarantine", "cas", "ac"])
def test_a_file_in_place_of_a_directory_is_an_error(
    local: LocalStore, record_of: Callable[..., Record], name: str
) -> None:
    local.put_record(record_of(1, plan=local.put_bytes(b"plan")))
    (local.root / name).rename(local.root / "aside")
    (local.root / name).write_bytes(b"in the way")
    store = LocalStore(local.root)
    with pytest.raises(StoreUnavailable) as caught:
        store.put_bytes(b"new")
    assert caught.value.hint and caught.value.file == str(local.root)
