"""The digest of a file is always correct, and in most cases the file is not read."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trtbuild.core.recipes.ports import FileStamp
from trtbuild.errors import SourceError
from trtbuild.store.digests import fingerprint
from trtbuild.store.digests.fingerprint import FileDigests
from trtbuild.store.digests.index import Index
from trtbuild.store.local.local import LocalStore


class HashCounter:
    """Counts the bytes that SHA-256 and xxh3 hash. The clock of `fingerprint` is `ahead_s` seconds ahead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sha256_bytes = self.xxh3_bytes = 0
        self.ahead_s = 0.0
        #: Called after each digest of a file's bytes.
        self.after_digest: Callable[[], object] = lambda: None
        real_time = time.time
        for name in ("_sha256", "_fingerprint", "_sha256_and_fingerprint"):
            monkeypatch.setattr(fingerprint, name, self._counted(name, getattr(fingerprint, name)))
        monkeypatch.setattr(fingerprint.time, "time", lambda: real_time() + self.ahead_s)

    def _counted(self, name: str, digest: Callable[..., object]) -> Callable[..., object]:
        def counted(descriptor: int, *rest: Any) -> object:
            size = os.fstat(descriptor).st_size
            self.sha256_bytes += size if name != "_fingerprint" else 0
            self.xxh3_bytes += size if name != "_sha256" else 0
            result = digest(descriptor, *rest)
            self.after_digest()
            return result

        return counted

    def reset(self) -> None:
        self.sha256_bytes = self.xxh3_bytes = 0


@pytest.fixture
def hash_counter(monkeypatch: pytest.MonkeyPatch) -> HashCounter:
    new_counter = HashCounter(monkeypatch)
    new_counter.ahead_s = 100.0  # so that files that were just written count as old enough
    return new_counter


@pytest.fixture
def digests(tmp_path: Path) -> Iterator[FileDigests]:
    index = Index(tmp_path / "index")
    yield FileDigests(index)
    index.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(b"x" * 3_000_000)
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_new_file_is_read_once(digests: FileDigests, file: Path, hash_counter: HashCounter) -> None:
    assert digests.sha256(file) == sha256(file)
    assert (hash_counter.sha256_bytes, hash_counter.xxh3_bytes) == (3_000_000, 3_000_000)


def test_an_unchanged_file_is_not_read(digests: FileDigests, file: Path, hash_counter: HashCounter) -> None:
    digests.sha256(file)
    hash_counter.reset()
    assert digests.sha256(file) == sha256(file)
    assert (hash_counter.sha256_bytes, hash_counter.xxh3_bytes) == (0, 0)


@pytest.mark.parametrize("how", ["touched", "rewritten", "replaced by a copy", "copied"])
def test_equal_bytes_need_only_a_fingerprint(
    digests: FileDigests, file: Path, hash_counter: HashCounter, how: str
) -> None:
    digests.sha256(file)
    hash_counter.reset()
    if how == "touched":
        os.utime(file)
    elif how == "rewritten":
        file.write_bytes(file.read_bytes())
    else:
        copy = file.with_name("copy")
        copy.write_bytes(file.read_bytes())
        file = copy if how == "copied" else copy.replace(file)
    assert digests.sha256(file) == sha256(file)
    assert (hash_counter.sha256_bytes, hash_counter.xxh3_bytes) == (0, 3_000_000)
    hash_counter.reset()
    digests.sha256(file)
    assert (hash_counter.sha256_bytes, hash_counter.xxh3_bytes) == (0, 0)


def test_detects_an_edit_of_the_same_size(digests: FileDigests, file: Path, hash_counter: HashCounter) -> None:
    digests.sha256(file)
    file.write_bytes(b"y" * 3_000_000)
    assert digests.sha256(file) == sha256(file)


def test_detects_an_edit_that_restores_the_mtime(digests: FileDigests, file: Path, hash_counter: HashCounter) -> None:
    before = file.stat()
    digests.sha256(file)
    file.write_bytes(b"y" * 3_000_000)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digests.sha256(file) == sha256(file)


def test_does_not_trust_the_times_of_a_fresh_file(
    digests: FileDigests, file: Path, hash_counter: HashCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two edits within one tick of the clock give a file the same times."""
    file.write_bytes(b"a" * 3_000_000)
    written_s = file.stat().st_mtime
    monkeypatch.setattr(fingerprint.time, "time", lambda: written_s)  # so the file is fresh, even on a slow machine
    digests.sha256(file)
    hash_counter.reset()
    assert digests.sha256(file) == sha256(file)
    assert (hash_counter.sha256_bytes, hash_counter.xxh3_bytes) == (0, 3_000_000)


def test_the_necessary_age_depends_on_the_clocks_granularity() -> None:
    """A file is racy if it is so young that a further edit may leave its times unchanged."""
    for ctime_ns, age_s, is_racy in (
        (10**18 + 123_456, 0.1, True),  # a clock that is finer than a millisecond
        (10**18 + 123_456, 0.5, False),
        (10**18 + 10**7, 0.5, True),  # ticks of ten milliseconds
        (10**18, 0.5, True),  # whole seconds, as in a FAT file system
        (10**18, 2.5, False),
        (10**18 + 123_456, -5.0, True),  # a server whose clock is ahead
    ):
        other_fields, atime, time_s = [0] * 7, 0, ctime_ns // 10**9
        status = os.stat_result(
            [*other_fields, atime, time_s, time_s],
            {"st_mtime": ctime_ns / 1e9, "st_ctime": ctime_ns / 1e9, "st_ctime_ns": ctime_ns},
        )
        assert fingerprint._is_racy(status, ctime_ns / 1e9 + age_s) == is_racy


def test_detects_quick_edits_with_the_real_clock(digests: FileDigests, tmp_path: Path) -> None:
    """The digests are right, whether the clock is fine or coarse."""
    path = tmp_path / "source.py"
    for number in range(100):
        path.write_bytes(b"%05d" % number)
        assert digests.sha256(path) == hashlib.sha256(b"%05d" % number).hexdigest()


def test_a_file_with_a_future_mtime_is_not_read_again(
    digests: FileDigests, file: Path, hash_counter: HashCounter
) -> None:
    os.utime(file, (time.time() + 1e6,) * 2)
    digests.sha256(file)
    hash_counter.reset()
    digests.sha256(file)
    assert (hash_counter.sha256_bytes, hash_counter.xxh3_bytes) == (0, 0)


def test_hashes_a_file_again_if_it_changes_during_a_read(
    digests: FileDigests, file: Path, hash_counter: HashCounter
) -> None:
    edits = 0

    def edit() -> None:
        nonlocal edits
        if edits < 2:
            edits += 1
            file.write_bytes(bytes([edits]) * (2_000_000 + edits))

    hash_counter.after_digest = edit
    assert digests.sha256(file) == hashlib.sha256(b"\2" * 2_000_002).hexdigest()
    assert edits == 2


def test_a_file_that_always_changes_is_an_error(digests: FileDigests, file: Path, hash_counter: HashCounter) -> None:
    sizes = iter(range(1000, 2000))
    hash_counter.after_digest = lambda: file.write_bytes(bytes(next(sizes)))
    with pytest.raises(SourceError) as caught:
        digests.sha256(file)
    assert caught.value.file == str(file) and caught.value.hint


SEGMENT = fingerprint.SEGMENT_SIZE


@pytest.mark.parametrize("size", [SEGMENT - 1, SEGMENT, SEGMENT + 1, 2 * SEGMENT, 2 * SEGMENT + 12345])
def test_the_fingerprint_is_the_same_alone_and_with_sha256(
    digests: FileDigests, tmp_path: Path, hash_counter: HashCounter, payload: Callable[[int, int], bytes], size: int
) -> None:
    path = tmp_path / "large"
    path.write_bytes(payload(1, size))
    assert digests.sha256(path) == sha256(path)
    hash_counter.reset()
    os.utime(path)
    assert digests.sha256(path) == sha256(path)
    assert (hash_counter.sha256_bytes, hash_counter.xxh3_bytes) == (0, size)


def test_the_fingerprint_depends_on_each_segment_and_their_order(
    tmp_path: Path, digests: FileDigests, hash_counter: HashCounter
) -> None:
    """Otherwise a file with other bytes would get the stored digest."""
    path, parts = tmp_path / "large", [bytes([number]) * SEGMENT for number in range(3)]
    for order in ((0, 1, 2), (1, 0, 2), (0, 2, 1), (0, 0, 2), (0, 1, 1)):
        path.write_bytes(b"".join(parts[number] for number in order))
        assert digests.sha256(path) == sha256(path)


def test_learns_the_digest_of_a_file_that_the_store_has_written(
    tmp_path: Path, digests: FileDigests, hash_counter: HashCounter
) -> None:
    hash_counter.ahead_s = 0.0  # the file is fresh
    store, path = LocalStore(tmp_path / "store"), tmp_path / "plan"
    output = store.put_bytes(b"x" * 3_000_000)
    stamp = store.copy_to(output.sha256, str(path))
    assert stamp is not None
    digests.note_written({str(path): (output.sha256, stamp)})
    assert digests.known_digests([str(path)]) == {str(path): (output.sha256, path.stat())}
    assert digests.sha256(path) == output.sha256
    assert (hash_counter.sha256_bytes, hash_counter.xxh3_bytes) == (0, 0)


@pytest.mark.parametrize("when", ["before it is learnt", "after it is learnt"])
@pytest.mark.parametrize("how", ["in place", "replaced", "within the tick"])
def test_detects_an_edit_of_a_file_that_the_store_has_written(
    tmp_path: Path, digests: FileDigests, hash_counter: HashCounter, how: str, when: str
) -> None:
    store, path = LocalStore(tmp_path / "store"), tmp_path / "plan"
    output = store.put_bytes(b"x" * 3_000_000)
    stamp = store.copy_to(output.sha256, str(path))
    assert stamp is not None
    if when == "after it is learnt":
        digests.note_written({str(path): (output.sha256, stamp)})
    if how == "replaced":
        path.with_name("other").write_bytes(b"y" * 3_000_000)
        os.utime(path.with_name("other"), ns=(stamp.mtime_ns, stamp.mtime_ns))
        path.with_name("other").replace(path)
    else:
        path.write_bytes(b"y" * 3_000_000)
    # an edit in the same tick gets the clock's time; the store has set a time one nanosecond later (publication.py, rule 4)
    if how == "within the tick":
        os.utime(path, ns=(stamp.mtime_ns - 1, stamp.mtime_ns - 1))
    if when == "before it is learnt":
        digests.note_written({str(path): (output.sha256, stamp)})
    assert digests.known_digests([str(path)]) == {}
    assert digests.sha256(path) == hashlib.sha256(b"y" * 3_000_000).hexdigest()


def test_does_not_note_a_removed_file(tmp_path: Path, digests: FileDigests) -> None:
    digests.note_written({str(tmp_path / "absent"): ("ab" * 32, FileStamp(1, 1, 1))})
    assert digests.known_digests([str(tmp_path / "absent")]) == {}


def test_a_fresh_file_is_not_known(digests: FileDigests, file: Path) -> None:
    digests.sha256(file)
    assert digests.known_digests([str(file), str(file.parent)]) == {}


def test_a_missing_file_has_no_digest_and_a_directory_is_an_error(
    digests: FileDigests, tmp_path: Path, file: Path
) -> None:
    assert digests.sha256(tmp_path / "absent") is None
    assert digests.sha256(file / "below a file") is None
    (tmp_path / "dangling").symlink_to("nowhere")
    assert digests.sha256(tmp_path / "dangling") is None
    with pytest.raises(IsADirectoryError):
        digests.sha256(tmp_path)


def test_the_digest_of_a_link_is_that_of_its_target(
    digests: FileDigests, tmp_path: Path, file: Path, hash_counter: HashCounter
) -> None:
    (tmp_path / "link").symlink_to(file)
    assert digests.sha256(tmp_path / "link") == sha256(file)
    other = tmp_path / "other"
    other.write_bytes(b"z" * 3_000_000)
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(other)
    assert digests.sha256(tmp_path / "link") == sha256(other)


def test_hashes_many_files(digests: FileDigests, tmp_path: Path, hash_counter: HashCounter) -> None:
    paths = [tmp_path / f"{number}" for number in range(30)]
    for number, path in enumerate(paths):
        path.write_bytes(b"%d" % number * number)
    expected = {str(path): sha256(path) for path in paths}
    requested = [*paths, tmp_path / "absent", paths[0]]
    for _ in range(2):
        results = digests.sha256_many(requested)
        assert results == {**expected, str(tmp_path / "absent"): None}
        assert list(results) == [str(path) for path in requested[:-1]]
        hash_counter.reset()
    assert digests.sha256_many(requested) and hash_counter.sha256_bytes == 0


def test_works_without_an_index(file: Path, tmp_path: Path) -> None:
    for digests in (FileDigests(), FileDigests(Index(file / "no place"))):
        assert digests.sha256_many([file, tmp_path / "absent"]) == {
            str(file): sha256(file),
            str(tmp_path / "absent"): None,
        }


def test_hashes_a_file_whose_path_is_not_utf_8(digests: FileDigests, tmp_path: Path, hash_counter: HashCounter) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")
    with open(path, "wb") as file:
        file.write(b"x")
    for _ in range(2):
        assert digests.sha256(path) == hashlib.sha256(b"x").hexdigest()


def test_ignores_invalid_values_in_the_index(tmp_path: Path, file: Path, hash_counter: HashCounter) -> None:
    index = Index(tmp_path / "index")
    digests = FileDigests(index)
    digests.sha256(file)
    identity = fingerprint._identity(file.stat())
    for nonsense in ("", "x", f"{identity} nonsense", identity, 5, 1.5):
        index.set(fingerprint._path_fact_name(str(file)), nonsense)
        assert digests.sha256(file) == sha256(file)
    index.close()
