"""Finds, touches, reads, writes and quarantines single entries of a local store. The rules are in local.py."""

# Paths are strings here: a large blob has thousands of them, and pathlib is slow.
# ruff: noqa: PTH104, PTH108, PTH116
from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import stat
from contextlib import AbstractContextManager, nullcontext

from trtbuild.core.recipes.record import Output
from trtbuild.errors import BlobMissing, EntryCorrupt
from trtbuild.store.local.layout import Kind, Layout, unavailable_error
from trtbuild.store.local.locks import Sessions, StoreLock
from trtbuild.store.local.publication import Publication

_log = logging.getLogger("trtbuild.store")

_EMPTY_SHA256 = hashlib.sha256().hexdigest()

# Another process may replace an entry by a pipe after the stat. With O_NONBLOCK, opening a pipe does not wait, and reading
# it returns no bytes.
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

# The number of bytes of the first read. Most entries are smaller, so this read returns all of their bytes.
_FIRST_READ_SIZE = 64 << 10


class Entries:
    """The entries of the store in the directory `root`. Raises StoreUnavailable as `Layout.check_format` does."""

    def __init__(self, root: str) -> None:
        self.layout = Layout(root)
        self.lock = StoreLock(self.layout)
        self.sessions = Sessions(self.layout, self.lock)
        self._prepared = False
        #: Whether entries are found without touches and locks (rule 10).
        self.is_read_only = False
        self.layout.check_format()

    def lookup_lock(self) -> AbstractContextManager[None]:
        """Return the lock to hold while entries are found."""
        return nullcontext() if self.is_read_only else self.lock.shared()

    def prepare(self) -> None:
        """Create the directories, before the first write. Raises StoreUnavailable."""
        if not self._prepared:
            self.layout.create()
            self._prepared = True

    def find(self, kind: Kind, name: str) -> int | None:
        """The size of an entry in bytes, or None. Touches the entry (rule 4). The caller holds `lookup_lock`."""
        path = self.layout.entry_path(kind, name)
        try:
            status = os.stat(path, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                # A link, a directory or a pipe is not an entry. A directory would also prevent writing the entry.
                self.quarantine(kind, name, "it is not a regular file")
                return None
            if status.st_size == 0 and name != _EMPTY_SHA256:
                return None  # a leftover of a loss of power, because only the entry of the empty blob has no bytes
            if not self.is_read_only and status.st_mtime_ns < self.sessions.touch_before_ns:
                os.utime(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            # This user cannot touch the entry, but can perhaps read it.
            return self._size_without_touch(path, error)
        return status.st_size

    def _size_without_touch(self, path: str, error: OSError) -> int:
        """The size of an entry that cannot be touched because of `error`. Raises StoreUnavailable."""
        try:
            return os.stat(path).st_size
        except OSError:
            raise unavailable_error(error, self.layout.root) from error

    def read(self, kind: Kind, name: str) -> bytes | None:
        """The bytes of an entry, without verifying them, or None. Raises StoreUnavailable."""
        try:
            descriptor = os.open(self.layout.entry_path(kind, name), _READ_FLAGS)
            try:
                data = os.read(descriptor, _FIRST_READ_SIZE)
                if len(data) < _FIRST_READ_SIZE and not os.read(descriptor, 1):  # the end of the file
                    return data
                with open(descriptor, "rb", closefd=False) as file:
                    file.seek(0)
                    return file.read()
            finally:
                os.close(descriptor)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unavailable_error(error, self.layout.root) from error

    def read_into(self, file: Output, view: memoryview) -> None:
        """Fill `view` with the bytes of a CAS file, without verifying them. `view` has the size of `file`.

        Moves a file of another size to quarantine. Raises BlobMissing, EntryCorrupt, StoreUnavailable.
        """
        try:
            descriptor = os.open(self.layout.entry_path("cas", file.sha256), _READ_FLAGS)
            try:
                size_fits = os.fstat(descriptor).st_size == file.size
                filled = 0
                while size_fits and filled < file.size:
                    count = os.readv(descriptor, [view[filled:]])
                    size_fits = count > 0
                    filled += count
            finally:
                os.close(descriptor)
        except (FileNotFoundError, NotADirectoryError):
            raise BlobMissing(f"{file.sha256} is not in the store {self.layout.root}") from None
        except OSError as error:
            raise unavailable_error(error, self.layout.root) from error
        if not size_fits:
            self.quarantine("cas", file.sha256, f"its size is not {file.size}")
            raise EntryCorrupt(f"{file.sha256} has a wrong size; it was moved to quarantine")

    def verify_file(self, file: Output) -> bool:
        """Whether the bytes of a CAS file have the digest in its name. If not, move the file to quarantine. Raises
        BlobMissing, StoreUnavailable."""
        data = self.read("cas", file.sha256)
        if data is None:
            raise BlobMissing(f"{file.sha256} is not in the store {self.layout.root}")
        if hashlib.sha256(data).hexdigest() == file.sha256:
            return True
        self.quarantine("cas", file.sha256, "its bytes have another SHA-256")
        return False

    def write(self, kind: Kind, name: str, data: bytes) -> None:
        """Publish one entry, durably. Raises StoreUnavailable."""
        self.prepare()
        publication = Publication(self.layout)
        publication.write(self.layout.entry_path(kind, name), data)
        publication.make_durable()

    def remove(self, kind: Kind, name: str) -> None:
        """Remove an entry, if it exists. Raises StoreUnavailable."""
        try:
            os.unlink(self.layout.entry_path(kind, name))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise unavailable_error(error, self.layout.root) from error

    def quarantine(self, kind: Kind, name: str, why: str) -> None:
        """Move a damaged entry to quarantine, and log a warning. If the store cannot be written, the entry stays."""
        path = self.layout.entry_path(kind, name)
        quarantined = f"{self.layout.quarantine}/{kind}-{name}-{secrets.token_hex(4)}"
        try:
            os.rename(path, quarantined)
        except OSError as error:
            _log.warning("%s is damaged (%s) and cannot be moved to quarantine: %s", path, why, error.strerror or error)
            return
        with contextlib.suppress(OSError):
            if kind == "cas" and stat.S_ISREG(os.lstat(quarantined).st_mode) and _sha256_of(quarantined) == name:
                # Another process has just replaced the damaged file by a correct one, and may rely on it.
                os.rename(quarantined, path)
                return
        _log.warning("quarantined %s: %s", path, why)


def _sha256_of(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
