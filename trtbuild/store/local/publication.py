"""Atomic, durable publication of files into a store.

Rules
1. A file is written under ``tmp/``, which is in the same file system; its data is synced before it gets its name; the
   name appears at once, by rename; then the directory is synced. So a name that can be seen has all its bytes, at any
   moment and after a loss of power.
2. The writer holds an flock on its file while it writes. Collection takes what no one holds and is old (collect.py).
3. The directories are synced once for many files, by `settle`, before anything that refers to those files is
   published. Directories of files that were there already are synced too: whoever wrote those may not be that far.
   Of many files, some are written before the first is synced (`gather`): the kernel writes them out meanwhile, and one
   commit of the file system's journal is enough for all of them. Each is still synced before it gets its name. (One
   syncfs(2) would also wait for all that others are writing to that file system.)
4. A copy that leaves the store (`copy_atomically`) is published in the same way, beside its place: it is durable
   before an index names it, because later builds trust it by its times. Its mtime is a nanosecond after the one that
   the file system gave: an edit gets one from the file system's clock, and so another one, even within the clock's
   tick. Where such an mtime is not kept, the copy has no stamp.
5. Files are read-only, less the umask. In a store that several users share (layout.py) they have the root's mode:
   whoever may write there must be able to touch them, which marks use.
"""

# Paths are strings here: a large blob has thousands of them, and pathlib is slow.
# ruff: noqa: PTH100, PTH104, PTH108
from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from functools import lru_cache
from typing import Any, NamedTuple

from trtbuild.core.recipes.ports import FileStamp
from trtbuild.store.local.layout import Layout, allow, unavailable

# Files that are written before the first of them is synced, and how many may be open while they wait for that. The slower
# the disk, the more are synced together.
_TOGETHER = 32
_OPEN = 256


class _Written(NamedTuple):
    """A file in ``tmp/`` that has its bytes, not yet synced, and the path that it will have."""

    descriptor: int
    fresh: str
    path: str


class Publication:
    """Publishes the files of one operation; remembers which directories are not synced yet. Its threads share it."""

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
        """Give `path` the bytes `data`, in place of what it had. Durable after `settle`. Raises StoreUnavailable."""
        try:
            try:
                self._write(path, data)
            except FileNotFoundError:  # someone removed the store's directories while it was in use
                self._layout.create()
                self._write(path, data)
        except OSError as error:
            raise unavailable(error, self._layout.root) from error

    def _write(self, path: str, data: bytes | memoryview) -> None:
        fresh = self._layout.fresh_name()
        with _fresh_file(fresh, 0o444) as descriptor:
            self._allow(descriptor)
            # A file system without locks loses the mark only: gc then goes by age alone.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_all(descriptor, data)
            os.fsync(descriptor)
            self._rename(fresh, path)

    def gather(self, path: str, data: bytes | memoryview) -> None:
        """The same for one of many files, which appear some at a time, the last of them by `settle`. A path that was
        gathered before is left as it is. `settle` or `abandon` must follow. Raises StoreUnavailable."""
        with self._lock:
            if path in self._gathered:
                return
            self._gathered.add(path)
        try:
            try:
                written = self._write_ahead(path, data)
            except FileNotFoundError:  # as in `write`
                self._layout.create()
                written = self._write_ahead(path, data)
            with self._room:
                self._written.append(written)
                self._open += 1
                if self._publisher is None and len(self._written) >= _TOGETHER:
                    self._publisher = threading.Thread(target=self._publish_behind, name="publisher", daemon=True)
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
            _write_all(descriptor, data)
            _start_writing_out(descriptor)
        except BaseException:
            remove([fresh])
            os.close(descriptor)
            raise
        return _Written(descriptor, fresh, path)

    def _publish_behind(self) -> None:
        """A thread: publish what was written, all of it at once, until little is left."""
        while True:
            with self._room:
                if len(self._written) < _TOGETHER or self._failure is not None:
                    self._publisher = None
                    return
                batch, self._written = self._written, []
            try:
                self._publish(batch)
            except BaseException as error:  # raised where the files come from
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
        """Wait for what is being published. Returns what is not; nothing else is written meanwhile."""
        publisher = self._publisher
        if publisher is not None:
            publisher.join()
        batch, self._written = self._written, []
        self._open = 0
        return batch

    def abandon(self) -> None:
        """Remove what was gathered and is not published yet."""
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
        """Have `settle` sync `folder`."""
        with self._lock:
            self._unsettled.add(folder)

    def settle(self, pool: Executor | None = None) -> None:
        """Publish what was gathered, then sync the directories of everything published so far. Raises StoreUnavailable."""
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


def sync_folder(path: str) -> None:
    """fsync a directory; a file system that cannot is let be."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def remove(paths: Iterable[str]) -> None:
    """Unlink what is there of `paths`."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def copy_atomically(pieces: Iterable[memoryview], path: str) -> FileStamp | None:
    """Write `pieces` to the file `path`, which appears whole and durable, or not at all when `pieces` raises.

    Returns its stamp (rule 4). Raises OSError when `path` cannot be written. The file has the permissions that the umask
    gives.
    """
    folder, name = os.path.split(os.path.abspath(path))
    fresh = f"{folder}/.{name[:200]}.{secrets.token_hex(8)}.tmp"
    with _fresh_file(fresh, 0o666) as descriptor:
        for piece in pieces:
            _write_all(descriptor, piece)
        stamp = _stamp(descriptor)
        os.fsync(descriptor)
        os.rename(fresh, path)
    sync_folder(folder)
    return stamp


@contextlib.contextmanager
def _fresh_file(path: str, mode: int) -> Iterator[int]:
    """A new file, open for writing; it is removed when the block raises, which renames it at its end."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        yield descriptor
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _start_writing_out(descriptor: int) -> None:
    """Have the kernel begin to write a file out, and do not wait; where it cannot, the sync that follows takes longer."""
    call = _sync_file_range()
    if call is not None:
        call(descriptor, 0, 0, 2)  # SYNC_FILE_RANGE_WRITE, of the whole file


@lru_cache(maxsize=1)
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    import ctypes  # 10 ms that few commands need

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
