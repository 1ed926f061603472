"""Digests of files: always right, and mostly without reading them."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trtbuild.errors import SourceError
from trtbuild.store import fingerprint
from trtbuild.store.fingerprint import FileDigests
from trtbuild.store.index import Index


class Counting:
    """Counts the bytes that go through SHA-256 and xxh3, and lets time pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sha256 = self.xxh3 = 0
        self.ahead_s = 0.0
        real_feed, real_time = fingerprint._feed, time.time

        def feed(file: object, *hashes: object) -> int:
            length = real_feed(file, *hashes)  # type: ignore[arg-type]
            for each in hashes:
                if "sha256" in str(getattr(each, "name", "")).lower():
                    self.sha256 += length
                else:
                    self.xxh3 += length
            return length

        monkeypatch.setattr(fingerprint, "_feed", feed)
        monkeypatch.setattr(fingerprint.time, "time", lambda: real_time() + self.ahead_s)

    def reset(self) -> None:
        self.sha256 = self.xxh3 = 0


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counting:
    counting = Counting(monkeypatch)
    counting.ahead_s = 100.0  # files that were just written are old enough
    return counting


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


def test_a_new_file_is_read_once(digests: FileDigests, file: Path, work: Counting) -> None:
    assert digests.sha256(file) == sha256(file)
    assert (work.sha256, work.xxh3) == (3_000_000, 3_000_000)


def test_an_unchanged_file_is_not_read(digests: FileDigests, file: Path, work: Counting) -> None:
    digests.sha256(file)
    work.reset()
    assert digests.sha256(file) == sha256(file)
    assert (work.sha256, work.xxh3) == (0, 0)


@pytest.mark.parametrize("how", ["touched", "rewritten", "renamed", "copied"])
def test_the_same_bytes_cost_a_fingerprint(digests: FileDigests, file: Path, work: Counting, how: str) -> None:
    digests.sha256(file)
    work.reset()
    if how == "touched":
        os.utime(file)
    elif how == "rewritten":
        file.write_bytes(file.read_bytes())
    else:
        copy = file.with_name("copy")
        copy.write_bytes(file.read_bytes())
        file = copy if how == "copied" else copy.replace(file)
    assert digests.sha256(file) == sha256(file)
    assert (work.sha256, work.xxh3) == (0, 3_000_000)
    work.reset()
    digests.sha256(file)
    assert (work.sha256, work.xxh3) == (0, 0)


def test_an_edit_of_the_same_size_is_seen(digests: FileDigests, file: Path, work: Counting) -> None:
    digests.sha256(file)
    file.write_bytes(b"y" * 3_000_000)
    assert digests.sha256(file) == sha256(file)


def test_an_edit_that_hides_its_mtime_is_seen(digests: FileDigests, file: Path, work: Counting) -> None:
    before = file.stat()
    digests.sha256(file)
    file.write_bytes(b"y" * 3_000_000)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digests.sha256(file) == sha256(file)


def test_a_racy_file_is_not_known_by_its_times(digests: FileDigests, file: Path, work: Counting) -> None:
    """Two edits within the clock's granularity have one stamp: of a fresh file nothing is remembered by stat."""
    work.ahead_s = 0.0
    file.write_bytes(b"a" * 3_000_000)
    digests.sha256(file)
    work.reset()
    assert digests.sha256(file) == sha256(file)
    assert (work.sha256, work.xxh3) == (0, 3_000_000)


def test_quick_edits_are_never_missed(digests: FileDigests, tmp_path: Path) -> None:
    """With the real clock, and whatever its granularity is."""
    path = tmp_path / "source.py"
    for number in range(100):
        path.write_bytes(b"%05d" % number)
        assert digests.sha256(path) == hashlib.sha256(b"%05d" % number).hexdigest()


def test_an_mtime_in_the_future_is_no_reason_to_read_again(digests: FileDigests, file: Path, work: Counting) -> None:
    os.utime(file, (time.time() + 1e6,) * 2)
    digests.sha256(file)
    work.reset()
    digests.sha256(file)
    assert (work.sha256, work.xxh3) == (0, 0)


def test_a_file_that_changes_while_it_is_read(
    digests: FileDigests, file: Path, work: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, edits = fingerprint._feed, 0

    def edited_meanwhile(*arguments: object) -> int:
        nonlocal edits
        length = feed(*arguments)  # type: ignore[arg-type]
        if edits < 2:
            edits += 1
            file.write_bytes(bytes([edits]) * (2_000_000 + edits))
        return length

    monkeypatch.setattr(fingerprint, "_feed", edited_meanwhile)
    assert digests.sha256(file) == hashlib.sha256(b"\2" * 2_000_002).hexdigest()
    assert edits == 2


def test_a_file_that_never_stops_changing(digests: FileDigests, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed, edits = fingerprint._feed, 0

    def edited_meanwhile(*arguments: object) -> int:
        nonlocal edits
        edits += 1
        length = feed(*arguments)  # type: ignore[arg-type]
        file.write_bytes(bytes(1000 + edits))
        return length

    monkeypatch.setattr(fingerprint, "_feed", edited_meanwhile)
    with pytest.raises(SourceError) as caught:
        digests.sha256(file)
    assert caught.value.file == str(file) and caught.value.hint


def test_missing_files_and_directories(digests: FileDigests, tmp_path: Path, file: Path) -> None:
    assert digests.sha256(tmp_path / "absent") is None
    assert digests.sha256(file / "below a file") is None
    (tmp_path / "dangling").symlink_to("nowhere")
    assert digests.sha256(tmp_path / "dangling") is None
    with pytest.raises(IsADirectoryError):
        digests.sha256(tmp_path)


def test_a_link_is_its_target(digests: FileDigests, tmp_path: Path, file: Path, work: Counting) -> None:
    (tmp_path / "link").symlink_to(file)
    assert digests.sha256(tmp_path / "link") == sha256(file)
    other = tmp_path / "other"
    other.write_bytes(b"z" * 3_000_000)
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(other)
    assert digests.sha256(tmp_path / "link") == sha256(other)


def test_many(digests: FileDigests, tmp_path: Path, work: Counting) -> None:
    paths = [tmp_path / f"{number}" for number in range(30)]
    for number, path in enumerate(paths):
        path.write_bytes(b"%d" % number * number)
    wanted = {str(path): sha256(path) for path in paths}
    asked = [*paths, tmp_path / "absent", paths[0]]
    for _ in range(2):
        found = digests.sha256_many(asked)
        assert found == {**wanted, str(tmp_path / "absent"): None}
        assert list(found) == [str(path) for path in asked[:-1]]
        work.reset()
    assert digests.sha256_many(asked) and work.sha256 == 0


def test_without_an_index(file: Path, tmp_path: Path) -> None:
    for digests in (FileDigests(), FileDigests(Index(file / "no place"))):
        assert digests.sha256_many([file, tmp_path / "absent"]) == {
            str(file): sha256(file),
            str(tmp_path / "absent"): None,
        }


def test_a_path_that_is_no_text(digests: FileDigests, tmp_path: Path, work: Counting) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")
    with open(path, "wb") as file:
        file.write(b"x")
    for _ in range(2):
        assert digests.sha256(path) == hashlib.sha256(b"x").hexdigest()


def test_nonsense_in_the_index_is_not_believed(tmp_path: Path, file: Path, work: Counting) -> None:
    index = Index(tmp_path / "index")
    digests = FileDigests(index)
    digests.sha256(file)
    identity = fingerprint._identity(file.stat())
    for nonsense in ("", "x", f"{identity} nonsense", identity, 5, 1.5):
        index.set(fingerprint._path_name(str(file)), nonsense)
        assert digests.sha256(file) == sha256(file)
    index.close()
