"""A shared directory as a remote: ``file:///srv/cache``, which may be on NFS. It needs neither locks nor a server.

    ac/<aa>/<key>  cas/<aa>/<sha256>  tmp/  gc/     <aa> are the first two characters of the name

An nginx cache has the same layout. Only collection uses gc/.

Rules
1. An entry is complete and has the permissions of the root as soon as it is visible. No symbolic link below the root is
   followed (shared_folder.py). If an entry is not a regular file, `get` raises RemoteLied, and `has` returns False. The
   next writer replaces it, if possible.
2. An empty file is not an entry, except the blob of zero bytes. nginx does not sync files, so a loss of power may leave
   empty files.
3. After a race with another machine, a system call may fail with ESTALE or ENOENT. A write is repeated after either error.
   A read that fails with ESTALE is repeated once. If a read fails with ENOENT, the entry does not exist.
4. A writer creates the root if its parent exists. If the parent is missing, too, the share is not mounted, and RemoteDown
   is raised. A local store (it has a file ``format``) is only read, because its collection does not protect the files that
   this transport writes.
5. A system call on a hung mount cannot be interrupted. So the first access to the root is in a separate thread. If it has
   not returned after `patience_s`, requests fail until it returns. A mount that hangs later blocks the calling thread. On a
   slow mount, timed calls end in time, because they check the time after each piece of `_PIECE_SIZE` bytes.
6. `has`, and `get` in ``ac/``, mark an entry as used. They set its mtime, if that differs from now by more than
   `MARK_TOLERANCE_S`.
"""

# Paths are strings here, as in the rest of the store.
# ruff: noqa: PTH116
from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from collections.abc import Callable
from io import RawIOBase
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from trtbuild.core.values.encoding import is_digest
from trtbuild.errors import ConfigurationError, RemoteDown, RemoteFault, RemoteFull, RemoteLied, RemoteRefused
from trtbuild.store.local.layout import Kind
from trtbuild.store.transports import faults
from trtbuild.store.transports.settings import RemoteSettings
from trtbuild.store.transports.shared_folder import SharedFolder
from trtbuild.store.transports.transport import TIMED_FACTOR, Transport

T = TypeVar("T")

#: Seconds by which the mtime of a used entry may differ from the time of use (shared_directory.py relies on it).
MARK_TOLERANCE_S = 900.0

EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

# The size, in bytes, of one read in a timed call (rule 5).
_PIECE_SIZE = 64 << 10

_RACE_ERRORS = (errno.ENOENT, errno.ESTALE)
# The largest number of attempts of a write. An attempt fails if another writer creates the same directory at the same
# moment, because its rename replaces this writer's directory, which is still empty.
_MAX_WRITE_ATTEMPTS = 16
_REFUSAL_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TRANSIENT_ERRORS = (errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_NOT_A_FILE_ERRORS = (errno.ELOOP, errno.ENXIO, errno.ENOTDIR, errno.EISDIR)


def root_of(url: str) -> str:
    """The directory of a ``file://`` URL. Raises ConfigurationError for a URL with a host or without an absolute path."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise ConfigurationError(
            "a shared directory is named by its absolute path, without a host",
            hint="write three slashes: file:///srv/cache (a ? or # in the path as %3F or %23)",
        )
    if not path.startswith("/") or "\0" in path or os.path.normpath(path) in ("/", "//"):
        raise ConfigurationError(f"not a directory for a cache: {path!r}", hint="write file:///srv/cache")
    return os.path.normpath(path)


def is_entry(kind: Kind, name: str, status: os.stat_result) -> bool:
    """Whether a file is an entry (rules 1 and 2)."""
    return stat.S_ISREG(status.st_mode) and (status.st_size > 0 or (kind == "cas" and name == EMPTY_SHA256))


class DirectoryTransport(Transport):
    """See `transport.Transport`. Raises ConfigurationError if the URL is not ``file:///path``."""

    decides_races = True

    def __init__(self, settings: RemoteSettings) -> None:
        self._shared = SharedFolder(root_of(settings.url))
        self.place = f"file://{self._shared.root}"
        self._patience_s = settings.patience_s
        self._lock = threading.Lock()
        self._first_access: threading.Thread | None = None
        #: The time (monotonic) after which calls do not wait for the first access, and whether it has returned (rule 5).
        self._give_up_at = 0.0
        self._answered = threading.Event()
        self._is_local_store = False

    def get(self, kind: Kind, name: str, limit: int, *, timed: bool = False) -> bytes | None:
        subfolder = _subfolder_of(name)
        deadline = time.monotonic() + TIMED_FACTOR * self._patience_s if timed else float("inf")
        return self._read_or_absent(lambda: self._get(kind, subfolder, name, limit, deadline), None)

    def has(self, kind: Kind, name: str) -> bool:
        subfolder = _subfolder_of(name)
        return self._read_or_absent(lambda: self._has(kind, subfolder, name), False)

    def put(self, kind: Kind, name: str, data: bytes | memoryview, *, once: bool) -> bool:
        path = (kind, _subfolder_of(name), name)
        self._wait_for_answer()
        if self._is_local_store:
            raise RemoteRefused(
                f"{self.place} is a local store of trtbuild, which others may only read",
                hint='share another directory, or give this remote mode = "r"',
            )
        is_kept = (lambda status: is_entry(kind, name, status)) if once else None
        for attempt in range(_MAX_WRITE_ATTEMPTS):
            try:
                if attempt:
                    self._shared.make(*path[:-1])
                is_written = self._shared.write(path, data, is_kept=is_kept)
                self.decides_races = self._shared.has_hard_links
                return is_written
            except OSError as error:
                if error.errno not in _RACE_ERRORS or attempt + 1 == _MAX_WRITE_ATTEMPTS:
                    raise self._fault(error, "write") from error
        raise AssertionError  # the last attempt raises

    def _get(self, kind: Kind, subfolder: str, name: str, limit: int, deadline: float) -> bytes | None:
        descriptor = self._shared.open(kind, subfolder, name)
        with open(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.ENXIO, "not a regular file")
            if not is_entry(kind, name, status):
                return None
            if status.st_size > limit:
                raise RemoteLied(f"{self.place}: {kind}/{name} has more than {limit} bytes")
            if kind == "ac":
                _mark_used(status, lambda: os.utime(descriptor))
            return self._read(file, status.st_size, f"{kind}/{name}", deadline)

    def _read(self, file: RawIOBase, size: int, name: str, deadline: float) -> bytes:
        pieces, count, piece_size = [], 0, size if deadline == float("inf") else _PIECE_SIZE
        while count < size:  # a signal may cut a read short
            piece = file.read(min(piece_size, size - count))
            if not piece:
                raise RemoteDown(f"{self.place}: {name} ended early", is_transient=True)
            pieces.append(piece)
            count += len(piece)
            if count < size and time.monotonic() >= deadline:
                raise faults.overdue_fault(self.place, TIMED_FACTOR * self._patience_s)
        return b"".join(pieces)

    def _has(self, kind: Kind, subfolder: str, name: str) -> bool:
        with self._shared.folder(kind, subfolder) as folder:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not is_entry(kind, name, status):
                return False
            _mark_used(status, lambda: os.utime(name, dir_fd=folder, follow_symlinks=False))
            return True

    def _read_or_absent(self, read: Callable[[], T], absent: T) -> T:
        """The result of `read`, or `absent` if there is no such entry. Raises RemoteFault."""
        self._wait_for_answer()
        try:
            try:
                return read()
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                return read()
        except FileNotFoundError:
            self._check_mount()
            return absent
        except OSError as error:
            raise self._fault(error, "read") from error

    def _check_mount(self) -> None:
        root = self._shared.root
        try:
            with contextlib.suppress(FileNotFoundError):
                os.stat(root)
                return
            os.stat(os.path.dirname(root))
        except OSError as error:
            raise self._fault(error, "read") from error

    def _wait_for_answer(self) -> None:
        """Wait until the first access to the root has returned (rule 5). Raises RemoteDown."""
        if self._answered.is_set():
            return
        with self._lock:
            if self._first_access is None:
                self._give_up_at = time.monotonic() + self._patience_s
                self._first_access = threading.Thread(
                    target=self._access_root, daemon=True, name="trtbuild-shared-directory"
                )
                self._first_access.start()
        if not self._answered.wait(max(0.0, self._give_up_at - time.monotonic())):
            raise RemoteDown(
                f"{self.place} has not answered for {self._patience_s:g} s",
                hint="does the mount hang? look at its server, or unmount it",
            )

    def _access_root(self) -> None:
        with contextlib.suppress(OSError):
            os.stat(f"{self._shared.root}/format")
            self._is_local_store = True
        self._answered.set()

    def _fault(self, error: OSError, action: str) -> RemoteFault:
        text = f"{self.place}: {error.strerror or error}"
        if error.errno in _REFUSAL_ERRORS:
            return RemoteRefused(
                text, hint=f"this user may not {action} there: ask for it, or change the remote's mode"
            )
        if error.errno in _FULL_ERRORS:
            return RemoteFull(text, hint="free some space there: trtbuild cache gc --dir DIR --max-size SIZE")
        if error.errno in _NOT_A_FILE_ERRORS:
            return RemoteLied(text) if action == "read" else RemoteRefused(text, hint="something else is in its place")
        if error.errno == errno.ENOENT:
            return RemoteDown(text, hint="is the share mounted? the directory's parent must be there")
        return RemoteDown(text, is_transient=error.errno in _TRANSIENT_ERRORS)


def _subfolder_of(name: str) -> str:
    """The folder of an entry. Raises ValueError for a name that is not a digest, so that no path leaves the directory."""
    if not is_digest(name):
        raise ValueError(f"not a digest: {name!r}")
    return name[:2]


def _mark_used(status: os.stat_result, touch: Callable[[], None]) -> None:
    # The clocks may differ. This machine's clock only decides whether to touch. The new time is the file system's.
    if abs(time.time() - status.st_mtime) > MARK_TOLERANCE_S:
        with contextlib.suppress(OSError, NotImplementedError):
            touch()
