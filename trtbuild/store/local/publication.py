"""Atomic, durable publication of files into a store.

Rules
1. A file is written under ``tmp/``, in the same file system, and synced. Then it is renamed, and the directory is synced.
   So a file with its final name has all its bytes at any moment, and after a loss of power.
2. The writer holds an flock on its file while it writes. Collection removes files that are old and not locked (collect.py).
3. The directories are synced once for many files, by `settle`, before an entry that names those files is published.
   The directories of existing files are synced too, because their writer may not have done it yet.
   If there are many files (`gather`), several files are written before the first is synced. The kernel writes them to the
   disk in the meantime, and one commit of the file system's journal is enough for all. Each file is still synced before it
   gets its name. (A syncfs(2) would also wait for other programs that write to the file system.)
4. A copy outside the store (`copy_atomically`) is durable before an index names it, because later builds trust it by its
   times. Its mtime is one nanosecond later than the time from the file system. An edit gets a time from the file system's
   clock, so it never gets the same mtime, not even within one tick. If the file system does not keep such an mtime, the
   copy has no stamp.
5. Files are read-only, and the umask applies. In a store that several users share (layout.py) they have the root's mode,
   because each user must be able to mark the files as used.
"""

# Paths are strings here: a large blob has thousands of them, and pathlib is slow.
# ruff: noqa: PTH104, PTH108
from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from functools import lru_cache
from typing import Any, NamedTuple

from trtbuild.atomic import new_file, replacing, sync_folder, write_all
from trtbuild.core.recipes.ports import FileStamp
from trtbuild.store.local.layout import Layout, allow, unavailable

# The number of files that are written before the first of them is synced.
_TOGETHER = 32
# The largest number of files that may be open while they wait for the sync. A slower disk syncs more files together.
_OPEN = 256


class _Written(NamedTuple):
    """A file in ``tmp/`` that is written and not yet synced, and its final path."""

    descriptor: int
    fresh: str
    path: str


class Publication:
    """Publishes the files of one operation, and collects the directories to sync. Several threads may use it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._lock = threading.Lock()
        self._unsettled: set[str] = set()
        self._gathered: set[str] = set()
        self._written: list[_Written] = []
        self._open = 0
        self._room = threading.Condition(self._lock)
        self._publisher: threading.Thread | None = None
        self._failure: BaseException | None = None

    def write(self, path: str, data: bytes | memoryview) -> None:
        """Replace the file `path` by the bytes `data`. Durable after `settle`. Raises StoreUnavailable."""
        try:
            try:
                self._write(path, data)
            except FileNotFoundError:  # the store's directories were removed while it was in use
                self._layout.create()
                self._write(path, data)
        except OSError as error:
            raise unavailable(error, self._layout.root) from error

    def _write(self, path: str, data: bytes | memoryview) -> None:
        fresh = self._layout.fresh_name()
        with new_file(fresh, 0o444) as descriptor:
            self._allow(descriptor)
            # On a file system without locks, collection looks at the age only.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write_all(descriptor, data)
            os.fsync(descriptor)
            self._rename(fresh, path)

    def gather(self, path: str, data: bytes | memoryview) -> None:
        """Like `write`, for one of many files, which are published in groups. A path that was gathered before is ignored.
        The caller must call `settle` or `abandon` afterwards. Raises StoreUnavailable."""
        with self._lock:
            if path in self._gathered:
                return
            self._gathered.add(path)
        try:
            try:
                written = self._write_ahead(path, data)
            except FileNotFoundError:  # the store's directories were removed while it was in use
                self._layout.create()
                written = self._write_ahead(path, data)
            with self._room:
                self._written.append(written)
                self._open += 1
                if self._publisher is None and len(self._written) >= _TOGETHER:
                    self._publisher = threading.Thread(target=self._publish_in_thread, name="publisher", daemon=True)
                    self._publisher.start()
                while self._open >= _OPEN and self._failure is None:
                    self._room.wait()
                if self._failure is not None:
                    raise self._failure
        except OSError as error:
            raise unavailable(error, self._layout.root) from error

    def _write_ahead(self, path: str, data: bytes | memoryview) -> _Written:
        fresh = self._layout.fresh_name()
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
        try:
            self._allow(descriptor)
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write_all(descriptor, data)
            _start_writing_out(descriptor)
        except BaseException:
            remove([fresh])
            os.close(descriptor)
            raise
        return _Written(descriptor, fresh, path)

    def _publish_in_thread(self) -> None:
        """Publish the written files in batches, until less than `_TOGETHER` files are left."""
        while True:
            with self._room:
                if len(self._written) < _TOGETHER or self._failure is not None:
                    self._publisher = None
                    return
                batch, self._written = self._written, []
            try:
                self._publish(batch)
            except BaseException as error:  # `gather` and `settle` raise it
                self._failure = error
            with self._room:
                self._open -= len(batch)
                self._room.notify_all()

    def _publish(self, batch: list[_Written]) -> None:
        try:
            for written in batch:
                os.fsync(written.descriptor)
            for written in batch:
                self._rename(written.fresh, written.path)
        except BaseException:
            remove(written.fresh for written in batch)
            raise
        finally:
            for written in batch:
                os.close(written.descriptor)

    def _finish(self) -> list[_Written]:
        """Wait for the thread that publishes. Returns the files that it has not published."""
        publisher = self._publisher
        if publisher is not None:
            publisher.join()
        batch, self._written = self._written, []
        self._open = 0
        return batch

    def abandon(self) -> None:
        """Remove the gathered files that are not published yet."""
        for written in self._finish():
            remove([written.fresh])
            os.close(written.descriptor)

    def _allow(self, descriptor: int) -> None:
        root = self._layout.shared()
        if root is not None:
            allow(descriptor, root, 0o666)

    def _rename(self, fresh: str, path: str) -> None:
        folder = os.path.dirname(path)
        try:
            os.rename(fresh, path)
        except FileNotFoundError:
            self._layout.make_folder(folder)
            self.also(os.path.dirname(folder))
            os.rename(fresh, path)
        self.also(folder)

    def also(self, folder: str) -> None:
        """Add a directory for `settle` to sync."""
        with self._lock:
            self._unsettled.add(folder)

    def settle(self, pool: Executor | None = None) -> None:
        """Publish the gathered files, then sync the directories of all published files. Raises StoreUnavailable."""
        try:
            if self._failure is not None:
                self.abandon()
                raise self._failure
            self._publish(self._finish())
            if self._failure is not None:
                raise self._failure
            with self._lock:
                folders, self._unsettled = self._unsettled, set()
            for _ in pool.map(sync_folder, folders) if pool else map(sync_folder, folders):
                pass
        except OSError as error:
            raise unavailable(error, self._layout.root) from error


def remove(paths: Iterable[str]) -> None:
    """Remove the files of `paths` that exist."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def copy_atomically(pieces: Iterable[memoryview], path: str) -> FileStamp | None:
    """Replace the file `path` by `pieces`, atomically and durably (`trtbuild.atomic`). Returns its stamp (rule 4).

    Raises OSError when `path` cannot be written, and the errors of `pieces`. After an error the old file is still there.
    """
    with replacing(path, durable=True) as descriptor:
        for piece in pieces:
            write_all(descriptor, piece)
        return _stamp(descriptor)


def _start_writing_out(descriptor: int) -> None:
    """Make the kernel begin to write a file to the disk, without waiting. If that fails, the later sync takes longer."""
    call = _sync_file_range()
    if call is not None:
        call(descriptor, 0, 0, 2)  # SYNC_FILE_RANGE_WRITE, of the whole file


@lru_cache(maxsize=1)
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    import ctypes  # takes 10 ms to import

    try:
        call: Any = ctypes.CDLL(None).sync_file_range  # Linux; it runs without the GIL
    except (AttributeError, OSError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call  # type: ignore[no-any-return]


def _stamp(descriptor: int) -> FileStamp | None:
    wanted_ns = os.fstat(descriptor).st_mtime_ns + 1
    try:
        os.utime(descriptor, ns=(wanted_ns, wanted_ns))
        stamped = os.fstat(descriptor)
    except (OSError, NotImplementedError):
        return None
    if stamped.st_mtime_ns != wanted_ns:
        return None
    return FileStamp(stamped.st_ino, stamped.st_size, wanted_ns)
