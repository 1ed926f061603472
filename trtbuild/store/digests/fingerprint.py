"""SHA-256 of files, found out with as little reading as is safe.

Rules
1. By stat: a file whose size, mtime, ctime and inode are as they were has the bytes that it had. Remembered only if
   both times were long enough in the past when the reading began: a later edit may get the same stamps (git calls such
   an entry racily clean). That is `RACY_S`, or `FINE_RACY_S` where the ctime, which nobody can choose, shows that the
   file system's clock is finer than that.
2. By fingerprint and size: a file that was touched, copied or checked out again is fingerprinted, at ten times the
   speed of SHA-256. Only if a file of that very size was seen before, for else nothing can be found.
3. Else both digests are computed in one reading; of a small file SHA-256 alone, which is done before an index answers.
4. If the stat changed while a file was read, it is read again.
5. A file that trtbuild has just written itself is known without being read (`learn`), if it still has the stamp that its
   writer gave it: an mtime that no edit gets, not even one within the clock's tick (publication.py, rule 4).
6. All of it is memory only: without an index every answer is the same, and slower.

The fingerprint is the xxh3-128 of the xxh3-128 of each `SEGMENT_SIZE` bytes, so that several threads can compute it.
Files are read, never mapped: one that is truncated meanwhile would be a SIGBUS.
"""

# Paths are strings here: there may be thousands of them, and pathlib is slow.
# ruff: noqa: PTH116
from __future__ import annotations

import hashlib
import os
import stat as stat_modes
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from trtbuild.core.recipes.ports import FileStamp
from trtbuild.core.recipes.record import is_digest
from trtbuild.errors import SourceError
from trtbuild.regular import open_regular
from trtbuild.store.digests.index import Fact, Index
from trtbuild.store.digests.reading import BUFFER_SIZE, Consumer, read_through

#: Seconds that a time stamp must lie back to be trusted: the coarsest clock of a file system in use (FAT).
RACY_S = 2.0
#: The same for a clock that gives parts of milliseconds: a tick of the kernel is 10 ms at most, and the clock of a file
#: server may be somewhat behind this machine's.
FINE_RACY_S = 0.2

#: Bytes of a file that one digest inside the fingerprint covers. Another size is another fingerprint.
SEGMENT_SIZE = 16 << 20

# From this size on, in bytes, a fingerprint is worth its rows in the index.
_LARGE_SIZE = 256 << 10

_ATTEMPTS = 5
_READERS = min(8, os.cpu_count() or 1)


class FileDigests:
    """Digests of files, remembered in `index`, which may be None. For use by several threads."""

    def __init__(self, index: Index | None = None) -> None:
        self._index = index

    def sha256(self, path: Path | str) -> str | None:
        """SHA-256 of the file's bytes, in hex; None when there is no such file.

        Raises OSError when it is there and cannot be read, and SourceError when it keeps changing.
        """
        return self.sha256_many([path])[str(path)]

    def sha256_beside(self, path: Path | str, begin: Callable[[int], Consumer]) -> tuple[str | None, Consumer | None]:
        """`sha256` of a large file, and something else in the same reading, if it has to be read for that at all.

        `begin` is called with the open descriptor, and gives what gets the file's bytes, in order. It is returned if what
        it got are exactly the bytes of the digest, else None is.
        """
        found = _stat(str(path))
        if found is None:
            return None, None
        known = self._known(str(path), found)
        if known is not None:
            return known, None
        digest, facts, consumer = self._read(str(path), begin)
        if self._index is not None:
            self._index.set_many(facts)
        return digest, consumer

    def sha256_many(self, paths: Iterable[Path | str]) -> dict[str, str | None]:
        """SHA-256 by path, as `sha256`, of many files at once."""
        wanted = list(dict.fromkeys(str(path) for path in paths))
        digests: dict[str, str | None] = {}
        unknown: list[str] = []
        for path in wanted:
            found = _stat(path)
            if found is None:
                digests[path] = None
            elif (known := self._known(path, found)) is not None:
                digests[path] = known
            else:
                unknown.append(path)
        if len(unknown) == 1 or _READERS == 1:
            results = [self._read(path) for path in unknown]
        elif unknown:
            with ThreadPoolExecutor(min(_READERS, len(unknown))) as pool:
                results = list(pool.map(self._read, unknown))
        else:
            results = []
        facts: dict[str, Fact] = {}
        for path, (digest, learnt, _) in zip(unknown, results, strict=True):
            digests[path] = digest
            facts.update(learnt)
        if self._index is not None:
            self._index.set_many(facts)
        return {path: digests[path] for path in wanted}

    def known(self, path: Path | str) -> tuple[str, os.stat_result] | None:
        """SHA-256 of the file's bytes and the stat that it holds for, if that is known by stat alone (rule 1)."""
        try:
            found = _stat(str(path))
        except OSError:
            return None
        digest = None if found is None else self._known(str(path), found)
        return None if found is None or digest is None else (digest, found)

    def learn(self, written: Mapping[str, tuple[str, FileStamp]]) -> None:
        """Remember files that were just written: by path, the SHA-256 of what was written, and its stamp (rule 5)."""
        facts: dict[str, Fact] = {}
        for path, (sha256, stamp) in written.items():
            try:
                found = os.stat(path)
            except OSError:
                continue
            if FileStamp(found.st_ino, found.st_size, found.st_mtime_ns) == stamp:
                facts[_path_name(path)] = f"{_identity(found)} {sha256}"
        if self._index is not None:
            self._index.set_many(facts)

    def _fact(self, name: str) -> Fact | None:
        return None if self._index is None else self._index.get(name)

    def _known(self, path: str, found: os.stat_result) -> str | None:
        times, _, digest = str(self._fact(_path_name(path)) or "").rpartition(" ")
        return digest if times == _identity(found) and is_digest(digest) else None

    def _read(
        self, path: str, begin: Callable[[int], Consumer] | None = None
    ) -> tuple[str | None, dict[str, Fact], Consumer | None]:
        """The digest, what to remember, and what else got all of the bytes (`sha256_beside`)."""
        for _ in range(_ATTEMPTS):
            began_s = time.time()
            try:
                descriptor = open_regular(path)
                try:
                    before = os.fstat(descriptor)
                    digest, facts, consumer = self._digest(descriptor, before.st_size, begin)
                finally:
                    os.close(descriptor)
            except (FileNotFoundError, NotADirectoryError):
                return None, {}, None
            after = _stat(path)
            if after is not None and _identity(after) == _identity(before):
                if not _racy(before, began_s):
                    facts[_path_name(path)] = f"{_identity(before)} {digest}"
                return digest, facts, consumer
        raise SourceError(
            "the file changes whenever it is read",
            code="unstable-file",
            file=path,
            hint="wait for the program that writes it, then build again",
        )

    def _digest(
        self, descriptor: int, size: int, begin: Callable[[int], Consumer] | None
    ) -> tuple[str, dict[str, Fact], Consumer | None]:
        if size < _LARGE_SIZE:
            return _sha256(descriptor).hexdigest(), {}, None
        seen = f"segments {size}"
        if self._fact(seen) is not None:
            known = self._fact(_content_name(_fingerprint(descriptor, size), size))
            if is_digest(known):
                return str(known), {}, None
        consumer = begin(descriptor) if begin is not None else None
        sha256, fingerprint, length = _both(descriptor, consumer)
        if length != size:
            return sha256, {}, None  # it grew or shrank meanwhile: `_read` reads it again
        return sha256, {seen: 1, _content_name(fingerprint, size): sha256}, consumer


def _sha256(descriptor: int) -> hashlib._Hash:
    digest = hashlib.sha256()
    while data := os.read(descriptor, BUFFER_SIZE):
        digest.update(data)
    return digest


def _fingerprint(descriptor: int, size: int) -> str:
    """The fingerprint of the file's first `size` bytes, by several threads. What is missing of them changes it."""

    def segment(start: int) -> bytes:
        digest, buffer = xxhash.xxh3_128(), memoryview(bytearray(BUFFER_SIZE))
        end = min(start + SEGMENT_SIZE, size)
        while start < end and (count := os.preadv(descriptor, [buffer[: end - start]], start)):
            digest.update(buffer[:count])
            start += count
        return digest.digest()

    starts = range(0, size, SEGMENT_SIZE)
    if len(starts) == 1:
        return xxhash.xxh3_128_hexdigest(segment(0))
    with ThreadPoolExecutor(min(_READERS, len(starts))) as pool:
        return xxhash.xxh3_128_hexdigest(b"".join(pool.map(segment, starts)))


def _both(descriptor: int, consumer: Consumer | None) -> tuple[str, str, int]:
    """SHA-256, fingerprint and length of a file, in one reading, which `consumer` gets too."""
    sha256, segments = hashlib.sha256(), _Segments()
    others = () if consumer is None else (consumer,)
    length = read_through(descriptor, sha256.update, segments.update, *others)
    return sha256.hexdigest(), segments.fingerprint(), length


class _Segments:
    """The fingerprint of bytes as they come."""

    def __init__(self) -> None:
        self._digests = b""
        self._segment, self._left = xxhash.xxh3_128(), SEGMENT_SIZE

    def update(self, view: memoryview) -> None:
        while view:
            if not self._left:
                self._digests += self._segment.digest()
                self._segment, self._left = xxhash.xxh3_128(), SEGMENT_SIZE
            piece, view = view[: self._left], view[self._left :]
            self._segment.update(piece)
            self._left -= len(piece)

    def fingerprint(self) -> str:
        return xxhash.xxh3_128_hexdigest(self._digests + self._segment.digest())


def _stat(path: str) -> os.stat_result | None:
    """Raises OSError for what is there and is no regular file."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat_modes.S_ISDIR(found.st_mode):
        raise IsADirectoryError(f"a directory has no digest: {path}")
    return found


def _identity(found: os.stat_result) -> str:
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"


def _racy(found: os.stat_result, began_s: float) -> bool:
    # An mtime far in the future was set by hand, and an edit would change it.
    racy_s = FINE_RACY_S if found.st_ctime_ns % 1_000_000 else RACY_S
    return began_s - found.st_ctime < racy_s or abs(began_s - found.st_mtime) < racy_s


def _path_name(path: str) -> str:
    # Paths need not be text that SQLite takes.
    return "path " + hashlib.sha256(os.path.abspath(os.fsencode(path))).hexdigest()  # noqa: PTH100


def _content_name(fingerprint: str, size: int) -> str:
    return f"segments {fingerprint} {size}"
