"""A kind of remote for tests only: all entries are in one SQLite file, ``sqlite:///path``.

It is added as docs/architecture.md describes, with a class and a row.
"""

from __future__ import annotations

import sqlite3
import threading
from urllib.parse import unquote, urlsplit

import pytest

from trtbuild.errors import RemoteLied
from trtbuild.store.local.layout import Kind
from trtbuild.store.transports import kinds
from trtbuild.store.transports.settings import RemoteSettings
from trtbuild.store.transports.transport import Transport

ROW = kinds.RemoteKind(("sqlite",), f"{__name__}:SqliteTransport", "directory", "sqlite3")


def add_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the row to the table, for one test."""
    monkeypatch.setattr(kinds, "KINDS", (*kinds.KINDS, ROW))


class SqliteTransport(Transport):
    """See `transport.Transport`."""

    decides_races = True

    def __init__(self, settings: RemoteSettings) -> None:
        self.place = settings.url
        self._lock = threading.Lock()
        self._file = sqlite3.connect(
            unquote(urlsplit(settings.url).path), isolation_level=None, check_same_thread=False
        )
        self._file.execute("PRAGMA synchronous = OFF")
        self._file.execute("CREATE TABLE IF NOT EXISTS entries (kind, name, data, PRIMARY KEY (kind, name))")

    def get(self, kind: Kind, name: str, limit: int, *, timed: bool = False) -> bytes | None:
        with self._lock:
            row = self._file.execute("SELECT data FROM entries WHERE kind = ? AND name = ?", (kind, name)).fetchone()
        if row is not None and len(row[0]) > limit:
            raise RemoteLied(f"{self.place}: {kind}/{name} has more than {limit} bytes")
        return None if row is None else bytes(row[0])

    def has(self, kind: Kind, name: str) -> bool:
        return self.get(kind, name, 1 << 40) is not None

    def put(self, kind: Kind, name: str, data: bytes | memoryview, *, once: bool) -> bool:
        conflict = "IGNORE" if once else "REPLACE"
        with self._lock:
            done = self._file.execute(f"INSERT OR {conflict} INTO entries VALUES (?, ?, ?)", (kind, name, bytes(data)))
        return done.rowcount == 1

    def close(self) -> None:
        with self._lock:
            self._file.close()
