"""SHA-256 of files, found out with as little reading as is safe.

Rules
1. By stat: a file whose size, mtime, ctime and inode are as they were has the bytes that it had. Remembered only if
   both times were at least `RACY_S` in the past when the reading began: a later edit may get the same stamps (git
   calls such an entry racily clean).
2. By xxh3-128 and size: a file that was touched, copied or checked out again is fingerprinted, at ten times the speed
   of SHA-256. Only if a file of that very size was seen before, for else nothing can be found.
3. Else both digests are computed in one reading; of a small file SHA-256 alone, which is done before an index answers.
4. If the stat changed while a file was read, it is read again.
5. All of it is memory only: without an index every answer is the same, and slower.
"""

from __future__ import annotations

import hashlib
import os
import stat as stat_modes
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import xxhash

from trtbuild.core.record import is_digest
from trtbuild.errors import SourceError
from trtbuild.store.index import Fact, Index

#: Seconds that a time stamp must lie back to be trusted: the coarsest clock of a file system in use (FAT).
RACY_S = 2.0

# Stays in the second-level cache between the read and the hash: 1.6 times xxh3 alone, and 2.0 with 4 MiB.
_BUFFER_SIZE = 256 << 10
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
        for path, (digest, learnt) in zip(unknown, results, strict=True):
            digests[path] = digest
            facts.update(learnt)
        if self._index is not None:
            self._index.set_many(facts)
        return {path: digests[path] for path in wanted}

    def _fact(self, name: str) -> Fact | None:
        return None if self._index is None else self._index.get(name)

    def _known(self, path: str, found: os.stat_result) -> str | None:
        times, _, digest = str(self._fact(_path_name(path)) or "").rpartition(" ")
        return digest if times == _identity(found) and is_digest(digest) else None

    def _read(self, path: str) -> tuple[str | None, dict[str, Fact]]:
        """The digest, and what to remember."""
        for _ in range(_ATTEMPTS):
            began_s = time.time()
            try:
                with open(path, "rb", buffering=0) as file:
                    before = os.fstat(file.fileno())
                    digest, facts = self._digest(file, before.st_size)
            except (FileNotFoundError, NotADirectoryError):
                return None, {}
            after = _stat(path)
            if after is not None and _identity(after) == _identity(before):
                if not _racy(before, began_s):
                    facts[_path_name(path)] = f"{_identity(before)} {digest}"
                return digest, facts
        raise SourceError(
            "the file changes whenever it is read",
            code="unstable-file",
            file=path,
            hint="wait for the program that writes it, then build again",
        )

    def _digest(self, file: BinaryIO, size: int) -> tuple[str, dict[str, Fact]]:
        if size < _LARGE_SIZE:
            digest = hashlib.sha256()
            _feed(file, digest)
            return digest.hexdigest(), {}
        seen = f"size {size}"
        if self._fact(seen) is not None:
            fingerprint = xxhash.xxh3_128()
            length = _feed(file, fingerprint)
            known = self._fact(_content_name(fingerprint.hexdigest(), length))
            if is_digest(known):
                return str(known), {}
            file.seek(0)
        fingerprint, digest = xxhash.xxh3_128(), hashlib.sha256()
        length = _feed(file, fingerprint, digest)
        sha256 = digest.hexdigest()
        if length != size:
            return sha256, {}  # it grew or shrank meanwhile: `_read` reads it again
        return sha256, {seen: 1, _content_name(fingerprint.hexdigest(), length): sha256}


def _feed(file: BinaryIO, *hashes: xxhash.xxh3_128 | hashlib._Hash) -> int:
    buffer = memoryview(bytearray(_BUFFER_SIZE))
    length = 0
    while count := file.readinto(buffer):  # type: ignore[attr-defined]
        for each in hashes:
            each.update(buffer[:count])
        length += count
    return length


def _stat(path: str) -> os.stat_result | None:
    """Raises OSError for what is there and is no regular file."""
    try:
        found = os.stat(path)  # noqa: PTH116 (thousands of files)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat_modes.S_ISDIR(found.st_mode):
        raise IsADirectoryError(f"a directory has no digest: {path}")
    return found


def _identity(found: os.stat_result) -> str:
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"


def _racy(found: os.stat_result, began_s: float) -> bool:
    # An mtime far in the future was set by hand, and an edit would change it.
    return began_s - found.st_ctime < RACY_S or abs(began_s - found.st_mtime) < RACY_S


def _path_name(path: str) -> str:
    # Paths need not be text that SQLite takes.
    return "path " + hashlib.sha256(os.path.abspath(os.fsencode(path))).hexdigest()  # noqa: PTH100


def _content_name(xxh3: str, size: int) -> str:
    return f"xxh3 {xxh3} {size}"
