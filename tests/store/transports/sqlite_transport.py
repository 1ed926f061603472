"""A kind of remote for tests only: all entries are in one SQLite file, ``sqlite:///path``.

It follows steps 1 and 2 of "Adding a remote" in docs/architecture.md: a class, and a row in the table `kinds.KINDS`.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from trtbuild.errors import RemoteDown, RemoteLied
from trtbuild.store.local.layout import Kind
from trtbuild.store.transports import faults, kinds
from trtbuild.store.transports.settings import RemoteSettings
from trtbuild.store.transports.transport import TIMED_FACTOR, Transport

ROW = kinds.RemoteKind(("sqlite",), f"{__name__}:SqliteTransport", "directory", "sqlite3")


def add_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add `ROW` to the table of kinds, for one test."""
    monkeypatch.setattr(kinds, "KINDS", (*kinds.KINDS, ROW))


class SqliteTransport(Transport):
    """A `Transport` whose entries are the rows of a table."""

    decides_races = True

    def __init__(self, settings: RemoteSettings) -> None:
        path = Path(unquote(urlsplit(settings.url).path))
        self.place = f"sqlite://{path}"  # without user and password, which the URL may have
        self._patience_s = settings.patience_s
        self._lock = threading.Lock()
        _make_file(path)
        # `timeout` limits the wait for other processes. In timed calls, `_database` limits the wait for other threads.
        self._file = sqlite3.connect(path, timeout=settings.patience_s, isolation_level=None, check_same_thread=False)
        with self._database() as database:
            database.execute("PRAGMA synchronous = OFF")
            database.execute("CREATE TABLE IF NOT EXISTS entries (kind, name, data, PRIMARY KEY (kind, name))")

    def get(self, kind: Kind, name: str, limit: int, *, timed: bool = False) -> bytes | None:
        with self._database(timed=timed) as database:
            query = "SELECT data FROM entries WHERE kind = ? AND name = ?"
            row = database.execute(query, (kind, name)).fetchone()
        if row is not None and len(row[0]) > limit:
            raise RemoteLied(f"{self.place}: {kind}/{name} has more than {limit} bytes")
        return None if row is None else bytes(row[0])

    def has(self, kind: Kind, name: str) -> bool:
        return self.get(kind, name, 1 << 40) is not None

    def put(self, kind: Kind, name: str, data: bytes | memoryview, *, once: bool) -> bool:
        conflict = "IGNORE" if once else "REPLACE"
        with self._database() as database:
            statement = f"INSERT OR {conflict} INTO entries VALUES (?, ?, ?)"
            return database.execute(statement, (kind, name, bytes(data))).rowcount == 1

    def close(self) -> None:
        with self._lock:
            self._file.close()

    @contextlib.contextmanager
    def _database(self, *, timed: bool = False) -> Iterator[sqlite3.Connection]:
        """Lock the connection for this thread. Raises RemoteDown for an operational error of SQLite, and in a timed call
        also if other threads hold the lock for too long."""
        limit_s = TIMED_FACTOR * self._patience_s
        if not self._lock.acquire(timeout=limit_s - self._patience_s if timed else -1):
            raise faults.overdue_fault(self.place, limit_s)
        try:
            yield self._file
        except sqlite3.OperationalError as error:
            raise RemoteDown(f"{self.place}: {error}", is_transient=True) from error
        finally:
            self._lock.release()


def _make_file(path: Path) -> None:
    """Create the file with the group and the mode of its directory (rule 7 of `Transport`)."""
    with contextlib.suppress(FileExistsError):
        path.touch(exist_ok=False)
        directory = path.parent.stat()
        with contextlib.suppress(PermissionError):  # raised if the writer is not a member of that group
            os.chown(path, -1, directory.st_gid)
        path.chmod(directory.st_mode & 0o666)
