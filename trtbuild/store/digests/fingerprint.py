"""Finds the SHA-256 of a file: in an index by the file's stat, else in the index by its fingerprint, else by hashing it.

Rules
1. By stat: a file with the same size, mtime, ctime and inode as before has the same bytes as before. The index gets the
   digest only if both times were old enough when the reading began. Otherwise a later edit could get the same times (git
   calls such an entry racily clean). A time is old enough after `RACY_S`, or after `FINE_RACY_S` if the ctime shows that
   the file system's clock is finer than a millisecond. (The mtime does not show this, because programs can set it.)
2. By fingerprint: the index has the fingerprint (xxHash), size and SHA-256 of each large file that was seen before. So a
   file that was touched, copied or checked out again is only fingerprinted, which is ten times as fast as SHA-256. If no
   file of this size was seen before, this lookup is left out.
3. Otherwise both digests are computed in one reading. For a small file only the SHA-256 is computed, which is faster than a
   lookup of its fingerprint.
4. If the stat changed while a file was read, the file is read again, at most `_MAX_ATTEMPTS` times in all.
5. The digest of a file that trtbuild has just written is stored without reading the file (`note_written`). The file must
   still have its writer's `FileStamp`. The writer adds one nanosecond to the mtime, so no edit gets the same mtime, not
   even within one tick of the clock (store/local/publication.py, rule 4).
6. The index only saves time: without it every answer is the same, but slower.

A file consists of segments of `SEGMENT_SIZE` bytes. The fingerprint is the xxh3-128 of the xxh3-128 digests of all
segments, so that several threads can compute it. Files are not mapped into memory, because a program that reads a mapped
file gets SIGBUS when the file is truncated.
"""

# Paths are strings here: there may be thousands of them, and pathlib is slow.
# ruff: noqa: PTH116
from __future__ import annotations

import contextlib
import hashlib
import os
import stat as stat_modes
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from trtbuild.core.recipes.ports import FileStamp
from trtbuild.core.values.encoding import is_digest
from trtbuild.errors import SourceError
from trtbuild.regular import open_regular
from trtbuild.store.digests.index import Fact, Index
from trtbuild.store.digests.reading import BUFFER_SIZE, Consumer, read_through

#: From this age in seconds on, an mtime or ctime is trusted (rule 1). It is the tick of the coarsest clock of common file
#: systems (FAT).
RACY_S = 2.0
#: The same for a clock that is finer than a millisecond. A tick of the kernel is at most 10 ms, and the clock of a file
#: server may be a little behind this machine's.
FINE_RACY_S = 0.2

#: The size in bytes of a segment. Another size gives other fingerprints.
SEGMENT_SIZE = 16 << 20

# The smallest size, in bytes, for which fingerprints are used (rule 3).
_LARGE_SIZE = 256 << 10

_MAX_ATTEMPTS = 5
_MAX_READERS = min(8, os.cpu_count() or 1)


class FileDigests:
    """Computes digests of files, and stores them in `index` unless it is None. Several threads may use one object."""

    def __init__(self, index: Index | None = None) -> None:
        self._index = index

    def sha256(self, path: Path | str) -> str | None:
        """The SHA-256 of the file's bytes, in hex; None when there is no such file.

        Raises OSError when the file cannot be read, and SourceError when it keeps changing.
        """
        return self.sha256_many([path])[str(path)]

    def sha256_with_consumer(
        self, path: Path | str, make_consumer: Callable[[int], Consumer]
    ) -> tuple[str | None, Consumer | None]:
        """The SHA-256 of a file, and the consumer that got the same bytes, or None.

        If a large file must be hashed, `make_consumer` is called with its open descriptor. The consumer that it returns
        gets the file's bytes in order. Raises the errors of `sha256`.
        """
        status = _stat(str(path))
        if status is None:
            return None, None
        known = self._known_sha256(str(path), status)
        if known is not None:
            return known, None
        digest, facts, consumer = self._read_digest(str(path), make_consumer)
        if self._index is not None:
            self._index.set_many(facts)
        return digest, consumer

    def sha256_many(self, paths: Iterable[Path | str]) -> dict[str, str | None]:
        """The SHA-256 of many files: path → digest. Several threads read the files. Raises the errors of `sha256`."""
        all_paths = list(dict.fromkeys(str(path) for path in paths))
        statuses = {path: _stat(path) for path in all_paths}
        digests: dict[str, str | None] = {path: None for path, status in statuses.items() if status is None}
        digests.update(self._known_many(statuses))
        unknown = [path for path in all_paths if path not in digests]
        if len(unknown) == 1 or _MAX_READERS == 1:
            results = [self._read_digest(path) for path in unknown]
        elif unknown:
            with ThreadPoolExecutor(min(_MAX_READERS, len(unknown))) as pool:
                results = list(pool.map(self._read_digest, unknown))
        else:
            results = []
        facts: dict[str, Fact] = {}
        for path, (digest, new_facts, _) in zip(unknown, results, strict=True):
            digests[path] = digest
            facts.update(new_facts)
        if self._index is not None:
            self._index.set_many(facts)
        return {path: digests[path] for path in all_paths}

    def known_digests(self, paths: Iterable[str]) -> dict[str, tuple[str, os.stat_result]]:
        """The files whose digest the index has by their stat (rule 1): path → (SHA-256, stat). Reads no file."""
        statuses: dict[str, os.stat_result] = {}
        for path in paths:
            with contextlib.suppress(OSError):
                status = _stat(path)
                if status is not None:
                    statuses[path] = status
        return {path: (digest, statuses[path]) for path, digest in self._known_many(statuses).items()}

    def note_written(self, written: Mapping[str, tuple[str, FileStamp]]) -> None:
        """Store the digests of files that were just written (rule 5). `written`: path → (SHA-256, stamp of the writer)."""
        facts: dict[str, Fact] = {}
        for path, (sha256, stamp) in written.items():
            try:
                status = os.stat(path)
            except OSError:
                continue
            if FileStamp(status.st_ino, status.st_size, status.st_mtime_ns) == stamp:
                facts[_path_fact_name(path)] = f"{_identity(status)} {sha256}"
        if self._index is not None:
            self._index.set_many(facts)

    def _stored_fact(self, name: str) -> Fact | None:
        return None if self._index is None else self._index.get(name)

    def _known_sha256(self, path: str, status: os.stat_result) -> str | None:
        return self._known_many({path: status}).get(path)

    def _known_many(self, statuses: Mapping[str, os.stat_result | None]) -> dict[str, str]:
        """The digests that the index has for these stats (path → stat): path → SHA-256."""
        if self._index is None:
            return {}
        names = {path: _path_fact_name(path) for path, status in statuses.items() if status is not None}
        facts = self._index.get_many(list(names.values()))
        digests = {}
        for path, name in names.items():
            identity, _, digest = str(facts.get(name, "")).rpartition(" ")
            status = statuses[path]
            if status is not None and identity == _identity(status) and is_digest(digest):
                digests[path] = digest
        return digests

    def _read_digest(
        self, path: str, make_consumer: Callable[[int], Consumer] | None = None
    ) -> tuple[str | None, dict[str, Fact], Consumer | None]:
        """Read a file. Returns its digest, the facts for the index, and the consumer (`sha256_with_consumer`)."""
        for _ in range(_MAX_ATTEMPTS):
            began_s = time.time()
            try:
                descriptor = open_regular(path)
                try:
                    before = os.fstat(descriptor)
                    digest, facts, consumer = self._compute_digest(descriptor, before.st_size, make_consumer)
                finally:
                    os.close(descriptor)
            except (FileNotFoundError, NotADirectoryError):
                return None, {}, None
            after = _stat(path)
            if after is not None and _identity(after) == _identity(before):
                if not _is_racy(before, began_s):
                    facts[_path_fact_name(path)] = f"{_identity(before)} {digest}"
                return digest, facts, consumer
        raise SourceError(
            "the file changes whenever it is read",
            code="unstable-file",
            file=path,
            hint="wait for the program that writes it, then build again",
        )

    def _compute_digest(
        self, descriptor: int, size: int, make_consumer: Callable[[int], Consumer] | None
    ) -> tuple[str, dict[str, Fact], Consumer | None]:
        """The digest, the facts for the index and the consumer of an open file (rules 2 and 3)."""
        if size < _LARGE_SIZE:
            return _sha256(descriptor).hexdigest(), {}, None
        size_fact_name = f"segments {size}"
        if self._stored_fact(size_fact_name) is not None:  # a file of this size was seen before
            known = self._stored_fact(_content_fact_name(_fingerprint(descriptor, size), size))
            if is_digest(known):
                return str(known), {}, None
        consumer = make_consumer(descriptor) if make_consumer is not None else None
        sha256, fingerprint, length = _sha256_and_fingerprint(descriptor, consumer)
        if length != size:
            return sha256, {}, None  # the file has changed: `_read_digest` reads it again
        return sha256, {size_fact_name: 1, _content_fact_name(fingerprint, size): sha256}, consumer


def _sha256(descriptor: int) -> hashlib._Hash:
    digest = hashlib.sha256()
    while data := os.read(descriptor, BUFFER_SIZE):
        digest.update(data)
    return digest


def _fingerprint(descriptor: int, size: int) -> str:
    """The fingerprint of the file's first `size` bytes, computed by several threads."""

    def hash_segment(start: int) -> bytes:
        digest, buffer = xxhash.xxh3_128(), memoryview(bytearray(BUFFER_SIZE))
        end = min(start + SEGMENT_SIZE, size)
        while start < end and (count := os.preadv(descriptor, [buffer[: end - start]], start)):
            digest.update(buffer[:count])
            start += count
        return digest.digest()

    starts = range(0, size, SEGMENT_SIZE)
    if len(starts) == 1:
        return xxhash.xxh3_128_hexdigest(hash_segment(0))
    with ThreadPoolExecutor(min(_MAX_READERS, len(starts))) as pool:
        return xxhash.xxh3_128_hexdigest(b"".join(pool.map(hash_segment, starts)))


def _sha256_and_fingerprint(descriptor: int, consumer: Consumer | None) -> tuple[str, str, int]:
    """The SHA-256, fingerprint and length of a file. `consumer` gets the bytes, too."""
    sha256, segments = hashlib.sha256(), _SegmentHasher()
    more_consumers = () if consumer is None else (consumer,)
    length = read_through(descriptor, sha256.update, segments.update, *more_consumers)
    return sha256.hexdigest(), segments.fingerprint(), length


class _SegmentHasher:
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
    """The stat of a file, or None if it does not exist. Raises OSError for a directory."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat_modes.S_ISDIR(status.st_mode):
        raise IsADirectoryError(f"a directory has no digest: {path}")
    return status


def _identity(status: os.stat_result) -> str:
    """The stat values of rule 1, as text."""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


def _is_racy(status: os.stat_result, began_s: float) -> bool:
    """Whether a later edit could give the file the same times (rule 1). `began_s` is the start of the reading."""
    # An mtime in the far future is not racy: a program has set it, and an edit would change it.
    racy_s = FINE_RACY_S if status.st_ctime_ns % 1_000_000 else RACY_S
    return began_s - status.st_ctime < racy_s or abs(began_s - status.st_mtime) < racy_s


def _path_fact_name(path: str) -> str:
    # Hashed, because SQLite does not accept every path as text.
    return "path " + hashlib.sha256(os.path.abspath(os.fsencode(path))).hexdigest()  # noqa: PTH100


def _content_fact_name(fingerprint: str, size: int) -> str:
    return f"segments {fingerprint} {size}"
