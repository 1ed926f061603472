"""The locks of a store: the store-wide lock, sessions, the keys that are being built, and ``locks/records``.

All of them are flock(2), so the kernel releases them when a process dies.

Rules
1. The store-wide lock ``locks/store`` is held shared while entries are found and touched, and while a session begins. It is
   held exclusively while a collection begins, and while a collection removes a short batch. A thread that holds this lock
   does not read, hash or write blobs, and does not wait for another lock. It may read AC entries (records and chunk lists),
   which are small.
2. A session is a time in which a process uses the store. The entries that the process finds, reads or writes in this time
   are not collected before the session ends (local.py, rule 5). Each session has a locked file in ``sessions/``. The
   session starts at the mtime of this file, which comes from the clock of the file system, like the mtimes of the entries.
3. While a key is being built, the file ``locks/<key>`` is locked. The holder of the lock removes the file before it
   releases the lock. So a process that gets the lock checks that the locked file still has the name ``locks/<key>``. If
   not, the process opens the new file of this name.
4. Descriptors are closed in forked children and on exec. Otherwise a child would still hold the lock after its parent has
   died. Only the descriptors of `lock_if_abandoned` stay open in forked children.
5. A user without permission to write to the store reads it without a session, and locks ``locks/store`` through a read-only
   descriptor. If this file cannot be opened, the store is read without locks. Then a collection of another user may remove
   an entry that was just found, and the entry counts as missing when it is read.
"""

# Paths are strings here: a large blob has thousands of them, and pathlib is slow.
# ruff: noqa: PTH108, PTH116
from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import threading
from collections.abc import Iterator

from trtbuild.store.local.layout import Layout, set_permissions, unavailable_error

#: Errors that show that this user cannot write to the store, or that the store does not exist yet (rule 5).
_READ_ONLY_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)

_open_descriptors: set[int] = set()
_descriptors_lock = threading.Lock()


def _before_fork() -> None:
    _descriptors_lock.acquire()


def _after_fork_in_parent() -> None:
    _descriptors_lock.release()


def _close_in_child() -> None:
    global _descriptors_lock
    _descriptors_lock = threading.Lock()
    for descriptor in _open_descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _open_descriptors.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_close_in_child)


def _open(path: str, flags: int) -> int:
    # A fork waits for this lock (`_before_fork`). Otherwise a fork between the next two lines would leak the descriptor.
    with _descriptors_lock:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
        _open_descriptors.add(descriptor)
    return descriptor


def _open_or_make(layout: Layout, path: str) -> int:
    """Open a lock file, and create it if necessary. In a shared store, a new file gets its permissions before it
    gets its name, if the file system has hard links. Raises OSError."""
    while True:
        try:
            return _open(path, os.O_RDWR)
        except FileNotFoundError:
            root_status = layout.shared_root_status()
        if root_status is None:
            return _open(path, os.O_RDWR | os.O_CREAT)
        fresh = layout.fresh_path()
        descriptor = _open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            set_permissions(descriptor, root_status, 0o666)
            os.link(fresh, path)  # the next iteration opens the file
        except FileExistsError:
            pass  # another process was faster
        except OSError:  # a file system without hard links
            new_descriptor = _open(path, os.O_RDWR | os.O_CREAT)
            set_permissions(new_descriptor, root_status, 0o666)
            return new_descriptor
        finally:
            _close(descriptor)
            os.unlink(fresh)


def _close(descriptor: int) -> None:
    with _descriptors_lock:
        # In a forked child the descriptor is not registered: it was closed, and its number may belong to another file.
        if descriptor in _open_descriptors:
            _open_descriptors.remove(descriptor)
            # Closing is not enough, because a process that was just forked may still have the descriptor open.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


class _ThreadState(threading.local):
    is_held = False  # whether the current thread holds the lock


class StoreLock:
    """The store-wide lock (rule 1). In a thread that already holds it, `shared` does nothing."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._thread = _ThreadState()

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock shared, so that no collection removes entries. Holds no lock if the file cannot be opened (rule 5).

        Raises StoreUnavailable after other errors, for example if the file system has no locks."""
        if self._thread.is_held:
            yield
            return
        try:
            descriptor = self._open()
        except OSError as error:
            if error.errno not in _READ_ONLY_ERRORS:
                raise unavailable_error(error, self._layout.root) from error
            yield
            return
        with self._hold(descriptor, fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock exclusively. Raises StoreUnavailable when the store cannot be written."""
        try:
            descriptor = _open_or_make(self._layout, f"{self._layout.locks}/store")
        except OSError as error:
            raise unavailable_error(error, self._layout.root) from error
        with self._hold(descriptor, fcntl.LOCK_EX):
            yield

    def _open(self) -> int:
        path = f"{self._layout.locks}/store"
        try:
            return _open_or_make(self._layout, path)
        except PermissionError:
            return _open(path, os.O_RDONLY)

    @contextlib.contextmanager
    def _hold(self, descriptor: int, operation: int) -> Iterator[None]:
        try:
            try:
                fcntl.flock(descriptor, operation)
            except OSError as error:
                raise unavailable_error(error, self._layout.root) from error
            self._thread.is_held = True
            try:
                yield
            finally:
                self._thread.is_held = False
        finally:
            _close(descriptor)


class Sessions:
    """The sessions of this process on one store (rule 2)."""

    def __init__(self, layout: Layout, lock: StoreLock) -> None:
        self._layout = layout
        self._store_lock = lock
        self._lock = threading.Lock()
        self._starts: dict[str, int] = {}
        #: A lookup touches an entry if its mtime (ns) is before this value. Newer entries are safe without a touch. Without
        #: a session the value is infinite, so every entry is touched (local.py, rules 4 and 5).
        self.touch_before_ns: float = math.inf

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold a session. Does nothing if the store cannot be written (rule 5). Raises StoreUnavailable."""
        path = f"{self._layout.sessions}/{os.path.basename(self._layout.fresh_path())}"
        with self._store_lock.shared():
            descriptor = self._begin(path)
        try:
            yield
        finally:
            if descriptor is not None:
                self._set_start(path, None)
                if descriptor in _open_descriptors:  # not in a forked child
                    with contextlib.suppress(OSError):
                        os.unlink(path)
                _close(descriptor)

    def _begin(self, path: str) -> int | None:
        """Create and lock the file of a session, and note the start. Returns the descriptor, or None if the store cannot be
        written. Raises StoreUnavailable after other errors."""
        while True:
            try:
                descriptor = _open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            except OSError as error:
                if error.errno not in _READ_ONLY_ERRORS:
                    raise unavailable_error(error, self._layout.root) from error
                return None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if (root_status := self._layout.shared_root_status()) is not None:
                    set_permissions(descriptor, root_status, 0o666)
                # A collection removes abandoned sessions without the store-wide lock. If it found the file before it was
                # locked, the file has no name now, and the session would protect nothing.
                if has_name(descriptor, path):
                    self._set_start(path, os.fstat(descriptor).st_mtime_ns)
                    return descriptor
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.unlink(path)
                _close(descriptor)
                raise unavailable_error(error, self._layout.root) from error
            _close(descriptor)

    @property
    def active(self) -> bool:
        """Whether this process holds a session."""
        return self.touch_before_ns < math.inf

    def _set_start(self, path: str, start: int | None) -> None:
        with self._lock:
            if start is None:
                self._starts.pop(path, None)
            else:
                self._starts[path] = start
            self.touch_before_ns = max(self._starts.values(), default=math.inf)


@contextlib.contextmanager
def hold_key_lock(layout: Layout, key: str) -> Iterator[None]:
    """Hold the lock of `key` (rule 3). Other threads and processes wait. Raises StoreUnavailable."""
    path = f"{layout.locks}/{key}"
    try:
        descriptor = _acquire_lock(layout, path)
    except OSError as error:
        raise unavailable_error(error, layout.root) from error
    try:
        yield
    finally:
        if descriptor in _open_descriptors:
            with contextlib.suppress(OSError):
                os.unlink(path)
        _close(descriptor)


@contextlib.contextmanager
def hold_records_lock(layout: Layout) -> Iterator[None]:
    """Hold ``locks/records``, so that one record at a time is looked up and published. Raises StoreUnavailable."""
    try:
        descriptor = _open_or_make(layout, f"{layout.locks}/records")
    except OSError as error:
        raise unavailable_error(error, layout.root) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            raise unavailable_error(error, layout.root) from error
        yield
    finally:
        _close(descriptor)


def _acquire_lock(layout: Layout, path: str) -> int:
    while True:
        descriptor = _open_or_make(layout, path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if has_name(descriptor, path):
                return descriptor
        except BaseException:
            _close(descriptor)
            raise
        _close(descriptor)


def has_name(descriptor: int, path: str) -> bool:
    """Whether `path` is still the name of the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def lock_if_abandoned(path: str) -> int | None:
    """Lock the file `path` if no process has locked it. Returns the descriptor, which the caller closes with `os.close`,
    or None."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError:
        # Files in tmp/ are read-only. NFS refuses an exclusive lock on such a descriptor: then the file counts as locked.
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if has_name(descriptor, path):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None
