"""A bundle: records and their blobs in one tar file, for machines without a network. Format: docs/bundle.md.

Rules
1. A bundle is a plain tar (POSIX ustar) with these members: ``format``, ``cas/…``, ``ac/…``, ``index``, in this order. The
   files of a folder are sorted by name. Headers contain no time and no owner. So bundles with equal contents have equal
   bytes.
2. For each name and size of a member there is exactly one valid header. The reader builds this header, and compares it with
   the header in the file. So a bundle cannot contain links, devices or paths outside a store.
3. The last member is the index, with the SHA-256 of everything before it. `open_bundle` reads the whole file before it uses
   any part. It rejects a bundle that was truncated, extended or altered.
4. Before a member is read, its size is compared with a limit and with the size of the rest of the file. The name of each
   file in ``cas/`` and ``ac/`` must be a digest, and a file in ``cas/`` must have this digest.
5. A file in ``ac/`` is the entry of a record: it lists the record's files in ``cas/``. An entry lists only files that are
   in the bundle, with their right sizes. Each file in ``cas/`` is listed by an entry.
6. An open bundle is a `Transport`, so its files are verified again when they are read. The check in `open_bundle` is not
   enough, because the file may change after the check.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from trtbuild.errors import BundleRefused, EntryCorrupt, RemoteDown, RemoteLied, RemoteRefused
from trtbuild.store.local.layout import Kind
from trtbuild.store.local.publication import copy_atomically
from trtbuild.store.remote.files import ReadFile
from trtbuild.store.remote.records import MAX_ENTRY_SIZE
from trtbuild.store.transports.transport import Transport
from trtbuild.store.trust.action_result import ActionResult

SCHEMA = "trtbuild.bundle/1"

_FORMAT_LINE = f"{SCHEMA}\n".encode()
_BLOCK_SIZE = 512
_END_BLOCKS = bytes(2 * _BLOCK_SIZE)
_MEMBER_NAME = re.compile(r"(cas|ac)/([0-9a-f]{2})/(\2[0-9a-f]{62})")
_SIZE_LIMITS = {"cas": MAX_ENTRY_SIZE, "ac": MAX_ENTRY_SIZE}  # a record's document in ``cas/`` may be that large
_MAX_FORMAT_SIZE = 64
_MAX_INDEX_SIZE = 4096

# Type flag of a header → the kind of member (POSIX pax, "ustar Header Block"; "K", "L" and "S" are from GNU tar).
_MEMBER_KINDS = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"5": "a directory",
    b"6": "a named pipe",
    b"S": "a sparse file",
    b"g": "an extended header",
    b"x": "an extended header",
    b"K": "an extended header",
    b"L": "an extended header",
}

#: A function that is called with the number of processed bytes and the number of all bytes.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class WrittenBundle:
    """The numbers of records and of files in ``cas/`` of a written bundle, and its size."""

    records: int
    files: int
    size_bytes: int


def write_bundle(
    path: str, entries: Mapping[str, ActionResult], read: ReadFile, progress: Progress | None = None
) -> WrittenBundle:
    """Write records and their files to `path`. `entries` maps the records' keys to their entries. `read` returns the bytes
    of a file in ``cas/``.

    The file at `path` appears complete or not at all. Raises the errors of `read`, EntryCorrupt if the bytes from `read` do
    not match their digest, and OSError if `path` cannot be written.
    """
    files = {file.sha256: file for entry in entries.values() for _, file in entry.files}
    data_sizes = [
        len(_FORMAT_LINE),
        *(file.size for file in files.values()),
        *(len(entry.to_bytes()) for entry in entries.values()),
        len(_index_document(len(entries), len(files), 0, "")),  # this index and the final index need one block each
    ]
    total = sum(map(_member_size, data_sizes)) + len(_END_BLOCKS)

    def members() -> Iterator[tuple[str, bytes | memoryview]]:
        yield "format", _FORMAT_LINE
        for sha256, file in sorted(files.items()):
            data = read(file)
            if len(data) != file.size or hashlib.sha256(data).hexdigest() != sha256:
                raise EntryCorrupt(f"{sha256} does not match its digest: it cannot be exported")
            yield _member_name("cas", sha256), data
        for key, entry in sorted(entries.items()):
            yield _member_name("ac", key), entry.to_bytes()

    def pieces() -> Iterator[memoryview]:
        content_hash, written_size = hashlib.sha256(), 0
        for name, data in members():
            for piece in (_header(name, len(data)), data, _padding(len(data))):
                content_hash.update(piece)
                written_size += len(piece)
                yield memoryview(piece)
            if progress is not None:
                progress(written_size, total)
        index = _index_document(len(entries), len(files), written_size, content_hash.hexdigest())
        for piece in (_header("index", len(index)), index, _padding(len(index)), _END_BLOCKS):
            yield memoryview(piece)

    copy_atomically(pieces(), path)
    return WrittenBundle(len(entries), len(files), Path(path).stat().st_size)


def _member_name(kind: Kind, name: str) -> str:
    return f"{kind}/{name[:2]}/{name}"


def _header(name: str, size: int) -> bytes:
    """The header of a member. Raises ValueError if the ustar format cannot express the name or the size."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o444
    return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK_SIZE)


def _member_size(size: int) -> int:
    """The size of a member with its header, `size` bytes of data, and its padding."""
    return _BLOCK_SIZE + size + -size % _BLOCK_SIZE


def _index_document(records: int, files: int, size_bytes: int, sha256: str) -> bytes:
    document = {"schema": SCHEMA, "records": records, "files": files, "bytes": size_bytes, "sha256": sha256}
    return json.dumps(document).encode() + b"\n"


class Bundle(Transport):
    """An open bundle: a `Transport` whose `put` raises RemoteRefused."""

    decides_races = True

    def __init__(self, place: str, file: BinaryIO, members: Mapping[tuple[Kind, str], tuple[int, int]]) -> None:
        self.place = place
        self._file = file
        self._members = members  # kind and name → offset and size

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the bundle's records, sorted."""
        return tuple(name for kind, name in self._members if kind == "ac")

    def get(self, kind: Kind, name: str, limit: int, *, timed: bool = False) -> bytes | None:
        if (kind, name) not in self._members:
            return None
        offset, size = self._members[kind, name]
        if size > limit:
            raise RemoteLied(f"{self.place}: {kind}/{name} has more than {limit} bytes")
        try:
            data = os.pread(self._file.fileno(), size, offset)
        except OSError as error:
            raise RemoteDown(f"{self.place} cannot be read: {error.strerror}") from error
        if len(data) != size:
            raise RemoteDown(f"{self.place} was changed while it was read")
        return data

    def has(self, kind: Kind, name: str) -> bool:
        return (kind, name) in self._members

    def put(self, kind: Kind, name: str, data: bytes | memoryview, *, once: bool) -> bool:
        raise RemoteRefused(f"{self.place} is a bundle, which cannot be written")

    def close(self) -> None:
        self._file.close()


def open_bundle(path: str, progress: Progress | None = None) -> Bundle:
    """Read a whole bundle and check it (rules 1 to 5).

    Raises BundleRefused, and OSError if `path` cannot be read.
    """
    file = _open_regular_file(path)
    try:
        members = _Reader(path, file, progress).read_members()
    except BaseException:
        file.close()
        raise
    return Bundle(path, file, members)


def _open_regular_file(path: str) -> BinaryIO:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # without O_NONBLOCK, opening a pipe waits
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise BundleRefused("a bundle is a regular file", file=path, hint="copy it to a disk first")


class _Reader:
    """Reads a bundle from its first byte to its last, and checks it."""

    def __init__(self, path: str, file: BinaryIO, progress: Progress | None) -> None:
        self._path = path
        self._file = file
        self._progress = progress or (lambda processed_size, total: None)
        self._size = os.fstat(file.fileno()).st_size
        self._offset = 0
        self._content_hash = hashlib.sha256()
        self._members: dict[tuple[Kind, str], tuple[int, int]] = {}
        self._named_sizes: dict[str, int] = {}  # the files that entries name: SHA-256 → size

    def read_members(self) -> dict[tuple[Kind, str], tuple[int, int]]:
        """Read and check the whole file. Returns the folder and name of each file in ``cas/`` and ``ac/`` → its offset and
        size."""
        name, size = self._read_header()
        if name != "format" or self._read_data(size, _MAX_FORMAT_SIZE) != _FORMAT_LINE:
            raise self._refusal("it does not begin as a bundle of this format", at=0)
        previous = (False, "")
        while True:
            start, digest_before = self._offset, self._content_hash.hexdigest()
            name, size = self._read_header()
            if name == "index":
                self._check_end(start, digest_before, self._read_data(size, _MAX_INDEX_SIZE))
                return self._members
            match = _MEMBER_NAME.fullmatch(name)
            if match is None:
                raise self._refusal(f"a bundle has no member {name!r}", at=start)
            kind: Kind = "cas" if match[1] == "cas" else "ac"
            # The files in ``cas/`` come first, and the files of each folder are sorted by name (rule 1).
            position = (kind == "ac", name)
            if position <= previous:
                problem = "occurs twice" if position == previous else "is out of order"
                raise self._refusal(f"{name} {problem}", at=start)
            previous = position
            self._members[kind, match[3]] = (self._offset, size)
            self._check_member(kind, match[3], self._read_data(size, _SIZE_LIMITS[kind]), start)
            self._progress(self._offset, self._size)

    def _check_member(self, kind: Kind, name: str, data: bytes, start: int) -> None:
        """Check a file in ``cas/`` or ``ac/`` (rules 4 and 5)."""
        if kind == "cas":
            if hashlib.sha256(data).hexdigest() != name:
                raise self._refusal(f"cas/{name} does not match its digest", at=start)
            return
        try:
            entry = ActionResult.from_bytes(data)
        except ValueError as error:
            raise self._refusal(f"ac/{name} is not an entry: {error}", at=start) from error
        if entry.document is None:
            raise self._refusal(f"ac/{name} names no record", at=start)
        for _, file in entry.files:
            _, size = self._members.get(("cas", file.sha256), (0, -1))
            if size != file.size:
                raise self._refusal(f"ac/{name} names {file.sha256}, which is missing or has another size", at=start)
            self._named_sizes[file.sha256] = file.size

    def _check_end(self, start: int, digest: str, data: bytes) -> None:
        """Check the index and the end of the file, and that an entry names each file in ``cas/``.

        `data` is the index. It begins at byte `start`, and `digest` is the SHA-256 of everything before it."""
        files = [name for kind, name in self._members if kind == "cas"]
        if data != _index_document(len(self._members) - len(files), len(files), start, digest):
            raise self._refusal("its index does not match its contents: the file was altered", at=start)
        if self._size - self._offset != len(_END_BLOCKS) or self._file.read(len(_END_BLOCKS) + 1) != _END_BLOCKS:
            raise self._refusal(
                "it does not end where its index does: it was cut off, or something was added", self._offset
            )
        unnamed = next((name for name in files if name not in self._named_sizes), None)
        if unnamed is not None:
            raise self._refusal(f"cas/{unnamed} belongs to no record")
        self._progress(self._size, self._size)

    def _read_header(self) -> tuple[str, int]:
        """Read the next header. Returns the member's name and size."""
        # A ustar header has these fields: name (bytes 0 to 99), size in octal digits (124 to 134), type flag (156), magic
        # bytes "ustar" (257 to 261).
        start, block = self._offset, self._read_bytes(_BLOCK_SIZE)
        name = block[:100].partition(b"\0")[0]
        digits = block[124:135]
        size = int(digits, 8) if re.fullmatch(rb"[0-7]{11}", digits) else -1
        try:
            expected = _header(name.decode("ascii"), size) if size >= 0 else b""
        except ValueError:
            expected = b""
        if block == expected:
            return name.decode("ascii"), size
        shown = name.decode("ascii", "backslashreplace")
        kind = _MEMBER_KINDS.get(block[156:157])
        if kind is not None and block[257:262] == b"ustar":
            raise self._refusal(f"{shown!r} is {kind}: a bundle has plain files only", at=start)
        raise self._refusal("this is not the header of a bundle's member", at=start)

    def _read_data(self, size: int, limit: int) -> bytes:
        if size > limit:
            raise self._refusal(f"a member of {size} bytes, but at most {limit} are allowed", at=self._offset)
        data = self._read_bytes(size)
        padding = -size % _BLOCK_SIZE
        if self._read_bytes(padding) != bytes(padding):
            raise self._refusal("the padding after a member has bytes that are not zero", at=self._offset - padding)
        return data

    def _read_bytes(self, size: int) -> bytes:
        if size > self._size - self._offset:
            raise self._refusal(f"it is cut off: it ends after {self._size} bytes, in the middle of a member")
        data = self._file.read(size)
        if len(data) != size:
            raise self._refusal("it was changed while it was read", at=self._offset)
        self._content_hash.update(data)
        self._offset += size
        return data

    def _refusal(self, why: str, at: int | None = None) -> BundleRefused:
        where = "" if at is None else f" (at byte {at})"
        return BundleRefused(
            f"the bundle is not imported: {why}{where}",
            file=self._path,
            hint="nothing of it was used; copy it once more, or export it again",
        )
