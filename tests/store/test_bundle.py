"""Equal records give equal bundles, an import restores all records, and a damaged bundle is rejected."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtbuild.core.recipes.record import Output, Record
from trtbuild.errors import BundleRefused, EntryCorrupt, RemoteDown, RemoteRefused
from trtbuild.store.bundle import open_bundle, write_bundle
from trtbuild.store.collection.check import verify
from trtbuild.store.layers.fetching import Fetched, fetch_records
from trtbuild.store.layers.sendable import file_reader, read_complete_record
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.store import RemoteStore

MIB = 1 << 20
BLOCK = 512

Payload = Callable[[int, int], bytes]


@pytest.fixture
def records(local: LocalStore, record_of: Callable[..., Record], payload: Payload) -> list[Record]:
    """Three records of `local`: with a large blob, with an edited copy of this blob, and with small blobs."""
    large = payload(1, 3 * MIB)
    first = record_of(1, plan=local.put_bytes(large), info=local.put_bytes(b"information"))
    second = record_of(2, plan=local.put_bytes(large[:MIB] + b"!" + large[MIB:]))
    third = record_of(3, stage="convert", onnx=local.put_bytes(b"onnx"), origins=local.put_bytes(b"[]"))
    return [local.put_record(record) for record in (first, second, third)]


def export_bundle(store: LocalStore, records: list[Record], path: Path) -> Path:
    found_records = {record.recipe.key: read_complete_record(store, record.recipe.key) for record in records}
    entries = {key: found.entry({}) for key, found in found_records.items() if found}
    write_bundle(str(path), entries, file_reader(store))
    return path


def import_bundle(path: Path, store: LocalStore) -> Fetched:
    bundle = open_bundle(str(path))
    remote = RemoteStore(bundle, "the bundle", store.trust, connections=4)
    try:
        return fetch_records(remote, bundle.keys, store)
    finally:
        remote.close()
        bundle.close()


@pytest.fixture
def bundle(local: LocalStore, records: list[Record], tmp_path: Path) -> Path:
    return export_bundle(local, records, tmp_path / "team.bundle")


@pytest.fixture
def other(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "other")


def entries_in(store: LocalStore) -> list[Path]:
    """The files in ``ac/``: records and chunk lists."""
    return list(store.root.glob("ac/*/*"))


# -- export and import


def test_exported_records_are_imported_unchanged(bundle: Path, records: list[Record], other: LocalStore) -> None:
    result = import_bundle(bundle, other)
    assert sorted(result.fetched) == sorted(record.recipe.key for record in records)
    assert (result.present, result.missing, result.untrusted, result.failed) == ([], [], {}, {})
    for record in records:
        assert other.get_record(record.recipe.key) == record
        for output in record.outputs.values():
            assert hashlib.sha256(other.get_bytes(output.sha256)).hexdigest() == output.sha256
    assert verify(other).damage == ()


def test_shared_chunks_are_stored_once(bundle: Path) -> None:
    assert 3 * MIB < bundle.stat().st_size < 4.5 * MIB, "the two plans together have more than 6 MiB"


def test_a_second_import_transfers_nothing(bundle: Path, records: list[Record], other: LocalStore) -> None:
    import_bundle(bundle, other)
    second = import_bundle(bundle, other)
    assert (len(second.present), second.fetched, second.bytes_moved) == (3, [], 0)


def test_bundles_of_equal_records_have_equal_bytes(
    bundle: Path, records: list[Record], other: LocalStore, tmp_path: Path
) -> None:
    import_bundle(bundle, other)
    second = export_bundle(other, list(reversed(records)), tmp_path / "again.bundle")
    assert second.read_bytes() == bundle.read_bytes()


def test_a_bundle_is_a_plain_tar_in_the_documented_order(bundle: Path) -> None:
    with tarfile.open(bundle, "r:") as archive:
        names = archive.getnames()
        index = json.loads((archive.extractfile("index") or io.BytesIO()).read())
    assert names[0] == "format" and names[-1] == "index"
    kinds = [name.split("/")[0] for name in names[1:-1]]
    assert kinds == sorted(kinds, key=["cas", "ac"].index)
    assert index["sha256"] == hashlib.sha256(bundle.read_bytes()[: index["bytes"]]).hexdigest()
    listing = subprocess.run(["tar", "tf", str(bundle)], capture_output=True, text=True, check=True).stdout
    assert listing.split() == names


def test_an_empty_bundle_is_valid(local: LocalStore, other: LocalStore, tmp_path: Path) -> None:
    assert import_bundle(export_bundle(local, [], tmp_path / "empty"), other) == Fetched()


def test_an_import_does_not_replace_an_existing_record(
    bundle: Path, records: list[Record], other: LocalStore, record_of: Callable[..., Record]
) -> None:
    mine = other.put_record(record_of(1, who="somebody else", plan=other.put_bytes(b"mine")))
    result = import_bundle(bundle, other)
    assert result.present == [mine.recipe.key]
    assert other.get_record(mine.recipe.key) == mine


def test_an_export_of_a_damaged_file_fails_and_leaves_no_bundle(
    local: LocalStore, records: list[Record], entry_path: Callable[..., Path], tmp_path: Path
) -> None:
    path = entry_path(local, "cas", local.files_of(records[0].outputs["plan"].sha256)[1].sha256)
    path.chmod(0o644)
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(EntryCorrupt):
        export_bundle(local, records, tmp_path / "bundle")
    assert not path.exists()  # it is in quarantine
    assert [file.name for file in tmp_path.iterdir()] == ["store"], "there is no bundle"


def test_a_failed_export_leaves_the_old_bundle(bundle: Path, local: LocalStore, records: list[Record]) -> None:
    before = bundle.read_bytes()

    def fail(file: Output) -> bytes:
        raise OSError(28, "No space left on device")

    found = read_complete_record(local, records[0].recipe.key)
    assert found is not None
    with pytest.raises(OSError, match="No space"):
        write_bundle(str(bundle), {records[0].recipe.key: found.entry({})}, fail)
    assert bundle.read_bytes() == before
    assert {path.name for path in bundle.parent.iterdir()} == {"store", "team.bundle"}, "no temporary file stays"


# -- invalid bundles


def assert_rejected(path: Path, data: bytes, store: LocalStore, match: str) -> None:
    """Check that the import of a bundle with the bytes `data` fails, and that it stores nothing."""
    path.write_bytes(data)
    with pytest.raises(BundleRefused, match=match):
        import_bundle(path, store)
    assert entries_in(store) == []
    assert not list(store.root.glob("cas/*/*"))


def member(name: str, data: bytes, **fields: object) -> bytes:
    """The bytes of a member of a tar file: its header and `data`. `fields` replace fields of the header."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o444
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % BLOCK)


def with_index(body: bytes, records: int, files: int) -> bytes:
    """A bundle of `body` and its index."""
    index = {"schema": "trtbuild.bundle/1", "records": records, "files": files, "bytes": len(body)}
    text = json.dumps({**index, "sha256": hashlib.sha256(body).hexdigest()}).encode() + b"\n"
    return body + member("index", text) + bytes(2 * BLOCK)


def members_of(path: Path) -> list[tuple[str, bytes]]:
    """The (name, data) of each member of a bundle, without the index."""
    with tarfile.open(path, "r:") as archive:
        members = [(info.name, (archive.extractfile(info) or io.BytesIO()).read()) for info in archive]
    return members[:-1]


def bundle_of(members: list[tuple[str, bytes]]) -> bytes:
    """The bytes of a bundle with these members and a correct index."""
    names = [name for name, _ in members]
    body = b"".join(member(name, data) for name, data in members)
    return with_index(
        body, sum(name.startswith("ac/") for name in names), sum(name.startswith("cas/") for name in names)
    )


def cas(data: bytes) -> tuple[str, bytes]:
    """The name and the data of a member in ``cas/``."""
    name = hashlib.sha256(data).hexdigest()
    return f"cas/{name[:2]}/{name}", data


def test_the_helpers_of_this_file_write_valid_bundles(bundle: Path) -> None:
    assert bundle_of(members_of(bundle)) == bundle.read_bytes()


def test_rejects_a_truncated_bundle(bundle: Path, other: LocalStore, tmp_path: Path) -> None:
    complete = bundle.read_bytes()
    offsets = [
        1,
        BLOCK,
        len(complete) // 2,
        len(complete) // 2 // BLOCK * BLOCK,
        len(complete) - 2048,
        len(complete) - 1025,
    ]
    for length in offsets:
        assert_rejected(tmp_path / "cut", complete[:length], other, "cut off")
    # Only bytes of the two empty blocks at the end are missing.
    for length in (len(complete) - 1024, len(complete) - 512, len(complete) - 1):
        assert_rejected(tmp_path / "cut", complete[:length], other, "cut off, or something was added")


def test_rejects_an_empty_file(other: LocalStore, tmp_path: Path) -> None:
    assert_rejected(tmp_path / "empty", b"", other, "cut off")


@pytest.mark.parametrize("more", [b"\0", bytes(BLOCK), b"more", member("format", b"x")])
def test_rejects_a_bundle_with_appended_bytes(bundle: Path, other: LocalStore, tmp_path: Path, more: bytes) -> None:
    assert_rejected(tmp_path / "long", bundle.read_bytes() + more, other, "something was added")


def test_rejects_a_bundle_with_a_flipped_bit(
    local: LocalStore, record_of: Callable[..., Record], other: LocalStore, tmp_path: Path
) -> None:
    record = local.put_record(record_of(1, plan=local.put_bytes(b"plan")))
    complete = export_bundle(local, [record], tmp_path / "small").read_bytes()
    path = tmp_path / "flipped"
    assert len(complete) < 10_000, "the loop is short"
    for position in range(0, len(complete), 19):
        flipped = bytearray(complete)
        flipped[position] ^= 1 << (position % 8)
        path.write_bytes(flipped)
        with pytest.raises(BundleRefused):
            import_bundle(path, other)
    assert entries_in(other) == [] and not list(other.root.glob("cas/*/*"))


def test_rejects_files_that_are_not_bundles(other: LocalStore, tmp_path: Path) -> None:
    assert_rejected(tmp_path / "page", b"<html>" * 1000, other, "not the header of a bundle")
    assert_rejected(
        tmp_path / "newer",
        with_index(member("format", b"trtbuild.bundle/2\n"), records=0, files=0),
        other,
        "this format",
    )
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("readme" + "é" * 10))
    assert_rejected(tmp_path / "tar", archive.getvalue(), other, "not the header|is an extended header")


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "cas/aa/../../../x",
        f"cas/ab/{'a' * 64}",
        f"cas/aa/{'a' * 63}",
        f"cas/AA/{'A' * 64}",
        f"cas/aa/{'a' * 64}/x",
        f"./cas/aa/{'a' * 64}",
        "tmp/x",
        "locks/store",
        "format",
    ],
)
def test_rejects_invalid_member_names(bundle: Path, other: LocalStore, tmp_path: Path, name: str) -> None:
    first, *rest = members_of(bundle)
    assert_rejected(tmp_path / "evil", bundle_of([first, (name, b"x"), *rest]), other, "a bundle has no member")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("flag", "kind"),
    [
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.SYMTYPE, "a symbolic link"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.DIRTYPE, "a directory"),
        (tarfile.FIFOTYPE, "a named pipe"),
        (tarfile.GNUTYPE_SPARSE, "a sparse file"),
        (tarfile.XHDTYPE, "an extended header"),
        (tarfile.GNUTYPE_LONGNAME, "an extended header"),
    ],
)
def test_rejects_members_that_are_not_plain_files(
    bundle: Path, other: LocalStore, tmp_path: Path, flag: bytes, kind: str
) -> None:
    (first_name, text), *rest = members_of(bundle)
    odd = member(f"cas/aa/{'a' * 64}", b"", type=flag, linkname="/etc/passwd")
    body = member(first_name, text) + odd + b"".join(member(name, data) for name, data in rest)
    assert_rejected(tmp_path / "odd", with_index(body, records=3, files=len(rest) - 3), other, kind)


@pytest.mark.parametrize("fields", [{"mode": 0o4755}, {"mtime": 1}, {"uid": 1}, {"uname": "root"}, {"linkname": "x"}])
def test_rejects_a_header_with_other_values(
    bundle: Path, other: LocalStore, tmp_path: Path, fields: dict[str, object]
) -> None:
    (first_name, text), (name, data), *rest = members_of(bundle)
    body = member(first_name, text) + member(name, data, **fields) + b"".join(member(*pair) for pair in rest)
    assert_rejected(
        tmp_path / "odd", with_index(body, records=3, files=len(rest) - 2), other, "not the header of a bundle"
    )


def test_rejects_duplicate_and_unordered_names(bundle: Path, other: LocalStore, tmp_path: Path) -> None:
    first, second, third, *rest = members_of(bundle)
    assert_rejected(tmp_path / "twice", bundle_of([first, second, second, third, *rest]), other, "occurs twice")
    assert_rejected(tmp_path / "order", bundle_of([first, third, second, *rest]), other, "out of order")
    entries = [pair for pair in rest if pair[0].startswith("ac/")]
    files = [pair for pair in rest if pair[0].startswith("cas/")]
    entry_before_files = [first, entries[0], second, third, *files, *entries[1:]]
    assert_rejected(tmp_path / "early", bundle_of(entry_before_files), other, "out of order|which is missing")


def test_rejects_a_file_whose_bytes_do_not_match_its_name(bundle: Path, other: LocalStore, tmp_path: Path) -> None:
    first, (name, data), *rest = members_of(bundle)
    forged = bundle_of([first, (name, data[:-1] + b"?"), *rest])
    assert_rejected(tmp_path / "forged", forged, other, "does not match its digest")


def test_rejects_sizes_above_the_limit_before_it_reads(bundle: Path, other: LocalStore, tmp_path: Path) -> None:
    first, *_ = members_of(bundle)
    huge = tarfile.TarInfo(f"cas/aa/{'a' * 64}")
    huge.mode = 0o444
    largest_of_tar = 8**11 - 1  # the size field has eleven octal digits
    # A member may have 64 MiB, but this bundle ends earlier.
    for size, match in ((largest_of_tar, "but at most"), (65 * MIB, "but at most"), (64 * MIB, "cut off")):
        huge.size = size
        bomb = member(*first) + huge.tobuf(tarfile.USTAR_FORMAT) + b"x" * BLOCK
        assert_rejected(tmp_path / "bomb", bomb, other, match)
    path = tmp_path / "holes"
    path.write_bytes(member(*first))
    os.truncate(path, 1 << 40)  # a sparse file of 1 TiB
    with pytest.raises(BundleRefused, match="not the header"):
        import_bundle(path, other)


def test_rejects_missing_and_unreferenced_files(bundle: Path, other: LocalStore, tmp_path: Path) -> None:
    first, *rest = members_of(bundle)
    incomplete = [pair for pair in rest if pair[1] != b"information"]
    assert len(incomplete) == len(rest) - 1
    assert_rejected(tmp_path / "less", bundle_of([first, *incomplete]), other, "which is missing or has another size")
    files = sorted([pair for pair in rest if pair[0].startswith("cas/")] + [cas(b"a stowaway")])
    entries = [pair for pair in rest if pair[0].startswith("ac/")]
    assert_rejected(tmp_path / "more", bundle_of([first, *files, *entries]), other, "belongs to no record")


def test_rejects_invalid_entries(bundle: Path, other: LocalStore, tmp_path: Path) -> None:
    first, *rest = members_of(bundle)
    files = [pair for pair in rest if pair[0].startswith("cas/")]
    (name, _), *entries = [pair for pair in rest if pair[0].startswith("ac/")]
    for garbage, match in ((b"{}", "is not an entry"), (b'{"outputFiles": []}', "names no record")):
        forged = bundle_of([first, *files, (name, garbage), *entries])
        assert_rejected(tmp_path / "forged", forged, other, match)


def test_rejects_the_index_of_another_bundle(bundle: Path, other: LocalStore, tmp_path: Path) -> None:
    body = b"".join(member(*pair) for pair in members_of(bundle))
    assert_rejected(
        tmp_path / "index", with_index(body, records=2, files=9), other, "its index does not match its contents"
    )


def test_does_not_import_a_record_under_another_key(bundle: Path, other: LocalStore, tmp_path: Path) -> None:
    first, *rest = members_of(bundle)
    files = [pair for pair in rest if pair[0].startswith("cas/")]
    (_, data), *entries = [pair for pair in rest if pair[0].startswith("ac/")]
    wrong = sorted([(f"ac/00/{'0' * 64}", data), *entries])
    path = tmp_path / "replayed"
    path.write_bytes(bundle_of([first, *files, *wrong]))
    result = import_bundle(path, other)
    assert list(result.failed) == ["0" * 64] and "another key" in result.failed["0" * 64]
    assert other.get_record("0" * 64) is None
    assert verify(other).damage == ()


def test_does_not_import_a_record_with_swapped_chunks(
    bundle: Path, records: list[Record], other: LocalStore, tmp_path: Path
) -> None:
    key = records[0].recipe.key
    members = []
    for name, data in members_of(bundle):
        if name.endswith(key):
            entry = json.loads(data)
            chunks = [each for each in entry["outputFiles"] if each["path"].endswith(("/0", "/1"))]
            chunks[0]["digest"], chunks[1]["digest"] = chunks[1]["digest"], chunks[0]["digest"]
            data = json.dumps(entry).encode()
        members.append((name, data))
    path = tmp_path / "swapped"
    path.write_bytes(bundle_of(members))
    result = import_bundle(path, other)
    assert list(result.failed) == [key]
    assert other.get_record(key) is None and len(result.fetched) == 2
    assert verify(other).damage == ()


def test_reads_only_regular_files(other: LocalStore, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(BundleRefused, match="regular file"):
            import_bundle(path, other)


def test_detects_a_bundle_that_changes_during_reading(bundle: Path, records: list[Record], other: LocalStore) -> None:
    opened = open_bundle(str(bundle))
    bundle.chmod(0o644)
    with open(bundle, "r+b") as file:
        file.write(bytes(bundle.stat().st_size))
    remote = RemoteStore(opened, "the bundle", other.trust, connections=2)
    result = fetch_records(remote, opened.keys, other)
    assert result.fetched == [] and len(result.failed) == 3
    os.truncate(bundle, 100)
    with pytest.raises(RemoteDown, match="changed while it was read"):
        opened.get("ac", opened.keys[0], 1 << 20)
    with pytest.raises(RemoteRefused):
        opened.put("cas", "a" * 64, b"", once=True)
    remote.close()
    assert entries_in(other) == []


# -- killed imports

IMPORT_PROGRAM = """\
import sys
from trtbuild.store.layers.fetching import fetch_records
from trtbuild.store.bundle import open_bundle
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.store import RemoteStore

bundle = open_bundle(sys.argv[1])
store = LocalStore(sys.argv[2])
print("opened", flush=True)
remote = RemoteStore(bundle, "the bundle", None, connections=2)
fetch_records(remote, bundle.keys, store, lambda _: print("a record", flush=True))
"""


# The program prints a line when the bundle is open, and a line for each record. It is killed after `line_count` lines.
@pytest.mark.parametrize("line_count", [1, 2, 3])
def test_a_killed_import_leaves_complete_records_and_can_be_repeated(
    bundle: Path, records: list[Record], tmp_path: Path, child: Callable[..., Any], line_count: int
) -> None:
    root = tmp_path / "killed"
    process = child(IMPORT_PROGRAM, bundle, root)
    for _ in range(line_count):
        process.read_line()
    process.kill()
    assert process.process.returncode == -signal.SIGKILL
    store = LocalStore(root)
    assert verify(store).damage == ()
    second = import_bundle(bundle, store)
    assert len(second.fetched) + len(second.present) == 3
    assert verify(store).damage == ()
