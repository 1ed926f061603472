"""Publishes files in a store, atomically (rename) and durably (fsync).

Rules
1. A file is written under ``tmp/``, in the same file system, and synced. Then it is renamed, and the directory is synced.
   So a file with its final name has all its bytes, at any moment and also after a loss of power.
2. The writer holds an flock on its file while it writes. Collection removes old files of ``tmp/`` that are not locked
   (leftovers.py).
3. The directories are synced once for many files, by `make_durable`, before an entry that names those files is published.
   The directories of existing files are synced, too, because their writers may not have synced them yet. `write_in_batch`
   writes many files before the first is synced. The kernel writes them to the disk in the meantime, and one commit of the
   file system's journal is enough for all. Each file is still synced before it gets its name. (A syncfs(2) would also wait
   for other programs that write to the file system.)
4. `copy_atomically` writes a copy outside the store. Later builds recognize the copy by its *stamp* (inode, size and
   mtime), and do not read it. So the copy is durable before the index of digests names it (digests/index.py). Its mtime is
   set to one nanosecond after the file system's time. An edit gets the file system's time, so it never gets the same mtime,
   not even within one tick. If the file system does not keep such an mtime, the copy has no stamp.
5. Files are read-only, and the umask applies. In a store that several users share (layout.py), files have the read and
   write bits of the store's directory, because each user must be able to touch the files.
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
from trtbuild.store.local.layout import Layout, set_permissions, unavailable_error

# The number of files that are written before the first of them is synced.
_BATCH_SIZE = 32
# The number of open files that wait for the sync, in all publications of this process, from which smaller batches are
# published, too. On a slow disk, the batches of a single publication grow up to this number. Most systems allow a process
# 1024 open files, and several publications run at once, for example eight while records are fetched.
_MAX_OPEN_FILES = 256


class _UnsyncedFile(NamedTuple):
    """A file that is written, but not synced yet."""

    descriptor: int
    fresh: str  # its path in ``tmp/``
    path: str  # its final path


class _OpenFiles:
    """Counts the open files that wait for the sync, in all publications of this process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def add(self, count: int) -> None:
        with self._lock:
            self._count += count

    @property
    def are_many(self) -> bool:
        return self._count >= _MAX_OPEN_FILES


_open_files = _OpenFiles()
os.register_at_fork(after_in_child=_open_files.reset)  # another thread may have held the lock


class Publication:
    """Publishes the files of one operation, and collects the directories to sync. Several threads may use it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._lock = threading.Lock()
        self._unsynced_folders: set[str] = set()
        self._batched_paths: set[str] = set()
        self._unsynced_files: list[_UnsyncedFile] = []
        #: Notified when the publishing thread has published a batch, and when it ends.
        self._progress = threading.Condition(self._lock)
        self._publisher: threading.Thread | None = None
        #: The error of the publishing thread.
        self._failure: BaseException | None = None

    def write(self, path: str, data: bytes | memoryview) -> None:
        """Replace the file `path` by the bytes `data`. The file is durable after `make_durable`. Raises
        StoreUnavailable."""
        try:
            try:
                self._write(path, data)
            except FileNotFoundError:  # the store's directories were removed while it was in use
                self._layout.create()
                self._write(path, data)
        except OSError as error:
            raise unavailable_error(error, self._layout.root) from error

    def _write(self, path: str, data: bytes | memoryview) -> None:
        fresh = self._layout.fresh_path()
        with new_file(fresh, 0o444) as descriptor:
            self._set_permissions(descriptor)
            # Without a lock, for example because the file system has no locks, only the file's age protects it.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write_all(descriptor, data)
            os.fsync(descriptor)
            self._rename(fresh, path)

    def write_in_batch(self, path: str, data: bytes | memoryview) -> None:
        """Like `write`, but the file is published together with others. A second call with the same path does nothing. The
        caller must call `make_durable` or `abandon` afterwards. Raises StoreUnavailable."""
        with self._lock:
            if path in self._batched_paths:
                return
            self._batched_paths.add(path)
        try:
            try:
                file = self._write_unsynced(path, data)
            except FileNotFoundError:  # the store's directories were removed while it was in use
                self._layout.create()
                file = self._write_unsynced(path, data)
            with self._progress:
                self._unsynced_files.append(file)
                _open_files.add(1)
                if self._publisher is None and self._is_batch_due():
                    self._publisher = threading.Thread(target=self._publish_in_thread, name="publisher", daemon=True)
                    self._publisher.start()
                # A publication waits for its own files only. Other publications may be idle, and keep theirs open.
                while self._publisher is not None and _open_files.are_many and self._failure is None:
                    self._progress.wait()
                if self._failure is not None:
                    raise self._failure
        except OSError as error:
            raise unavailable_error(error, self._layout.root) from error

    def _write_unsynced(self, path: str, data: bytes | memoryview) -> _UnsyncedFile:
        fresh = self._layout.fresh_path()
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
        try:
            self._set_permissions(descriptor)
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write_all(descriptor, data)
            _start_writing_out(descriptor)
        except BaseException:
            remove_files([fresh])
            os.close(descriptor)
            raise
        return _UnsyncedFile(descriptor, fresh, path)

    def _is_batch_due(self) -> bool:
        """Whether the publishing thread has to publish the written files now."""
        return len(self._unsynced_files) >= _BATCH_SIZE or (bool(self._unsynced_files) and _open_files.are_many)

    def _publish_in_thread(self) -> None:
        """Publish the written files in batches, until no batch is due."""
        while True:
            with self._progress:
                if not self._is_batch_due() or self._failure is not None:
                    self._publisher = None
                    self._progress.notify_all()
                    return
                batch, self._unsynced_files = self._unsynced_files, []
            try:
                self._publish_batch(batch)
            except BaseException as error:  # `write_in_batch` or `make_durable` raises it
                self._failure = error
            with self._progress:
                self._progress.notify_all()

    def _publish_batch(self, batch: list[_UnsyncedFile]) -> None:
        try:
            for file in batch:
                os.fsync(file.descriptor)
            for file in batch:
                self._rename(file.fresh, file.path)
        except BaseException:
            remove_files(file.fresh for file in batch)
            raise
        finally:
            for file in batch:
                os.close(file.descriptor)
            _open_files.add(-len(batch))

    def _take_unpublished(self) -> list[_UnsyncedFile]:
        """Wait until the publishing thread ends. Returns the files that it has not published."""
        publisher = self._publisher
        if publisher is not None:
            publisher.join()
        batch, self._unsynced_files = self._unsynced_files, []
        return batch

    def abandon(self) -> None:
        """Remove the files of `write_in_batch` that are not published yet."""
        for file in self._take_unpublished():
            remove_files([file.fresh])
            os.close(file.descriptor)
            _open_files.add(-1)

    def _set_permissions(self, descriptor: int) -> None:
        root_status = self._layout.shared_root_status()
        if root_status is not None:
            set_permissions(descriptor, root_status, 0o666)

    def _rename(self, fresh: str, path: str) -> None:
        folder = os.path.dirname(path)
        try:
            os.rename(fresh, path)
        except FileNotFoundError:
            self._layout.make_folder(folder)
            self.add_folder(os.path.dirname(folder))
            os.rename(fresh, path)
        self.add_folder(folder)

    def add_folder(self, folder: str) -> None:
        """Add a directory that `make_durable` will sync."""
        with self._lock:
            self._unsynced_folders.add(folder)

    def make_durable(self, pool: Executor | None = None) -> None:
        """Publish the files of `write_in_batch`, then sync the directories of all published files. Raises
        StoreUnavailable."""
        try:
            if self._failure is not None:
                self.abandon()
                raise self._failure
            self._publish_batch(self._take_unpublished())
            if self._failure is not None:
                raise self._failure
            with self._lock:
                folders, self._unsynced_folders = self._unsynced_folders, set()
            for _ in pool.map(sync_folder, folders) if pool else map(sync_folder, folders):
                pass  # the iteration raises the errors of `sync_folder`
        except OSError as error:
            raise unavailable_error(error, self._layout.root) from error


def remove_files(paths: Iterable[str]) -> None:
    """Remove those of these files that exist."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def copy_atomically(pieces: Iterable[memoryview], path: str) -> FileStamp | None:
    """Replace the file `path` by `pieces`, atomically and durably. Returns its stamp (rule 4).

    Raises OSError when `path` cannot be written, and the errors of `pieces`. After an error, the old file is still there.
    """
    with replacing(path, durable=True) as descriptor:
        for piece in pieces:
            write_all(descriptor, piece)
        return _set_stamp(descriptor)


def _start_writing_out(descriptor: int) -> None:
    """Make the kernel begin to write a file to the disk. If this fails, the later sync only takes longer."""
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


def _set_stamp(descriptor: int) -> FileStamp | None:
    """Set the mtime and return the stamp, or None (rule 4)."""
    mtime_ns = os.fstat(descriptor).st_mtime_ns + 1
    try:
        os.utime(descriptor, ns=(mtime_ns, mtime_ns))
        stamped = os.fstat(descriptor)
    except (OSError, NotImplementedError):
        return None
    if stamped.st_mtime_ns != mtime_ns:
        return None
    return FileStamp(stamped.st_ino, stamped.st_size, mtime_ns)
