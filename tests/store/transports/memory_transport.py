"""A transport in memory, whose entries a test can read and damage."""

from __future__ import annotations

import threading

from trtbuild.errors import RemoteLied
from trtbuild.store.local.layout import Kind
from trtbuild.store.transports.transport import Transport


class MemoryTransport(Transport):
    """A `Transport` whose entries are in a dictionary."""

    decides_races = True

    def __init__(self, place: str = "memory://") -> None:
        self.place = place
        self.entries: dict[tuple[Kind, str], bytes] = {}
        #: Every call: (method, kind, name, number of transferred bytes).
        self.calls: list[tuple[str, Kind, str, int]] = []
        self._lock = threading.Lock()

    def get(self, kind: Kind, name: str, limit: int, *, timed: bool = False) -> bytes | None:
        with self._lock:
            data = self.entries.get((kind, name))
            self.calls.append(("get", kind, name, len(data or b"")))
        if data is not None and len(data) > limit:
            raise RemoteLied(f"{self.place}: {kind}/{name} has more than {limit} bytes")
        return data

    def has(self, kind: Kind, name: str) -> bool:
        with self._lock:
            self.calls.append(("has", kind, name, 0))
            return (kind, name) in self.entries

    def put(self, kind: Kind, name: str, data: bytes | memoryview, *, once: bool) -> bool:
        with self._lock:
            if once and (kind, name) in self.entries:
                self.calls.append(("put", kind, name, 0))
                return False
            self.entries[kind, name] = bytes(data)
            self.calls.append(("put", kind, name, len(data)))
            return True
