"""The CAS files of a remote: fetched, compared with their names, sent; several at once.

Rules
1. Nothing that comes is believed: a file is compared with its digest and its size, which bounds what is read. What does not
   fit is RemoteLied, and is as good as not there.
2. A file that is there is not sent again; so what was broken off goes on where it stopped.
3. A file that was seen there is taken to be there for `TRUSTED_S` at most. A collection over there waits longer than
   that (`collection`).
4. What moves, moves over several connections at once, some files ahead of what is needed: memory stays bounded. What is
   sent has connections of its own, so that no plan waits behind an upload.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from trtbuild.core.recipes.record import Output
from trtbuild.errors import BlobMissing, RemoteLied
from trtbuild.store.transports.transport import Transport

#: A CAS file has at most this many bytes.
MAX_FILE = 4 << 20

#: Seconds for which a file that was seen over there is taken to be there.
TRUSTED_S = 1800.0

# Bytes of a file that is as quick as an entry: what a plan reads is mostly such (`Transport`, rule 3).
_SMALL = 64 << 10

# How many files are on their way beyond those that the connections carry.
_AHEAD = 16

# Bytes that are kept of small files that came with entries. The links of a hundred traces are a few MiB.
_MOST_KNOWN = 64 << 20

Read = Callable[[Output], "bytes | memoryview"]


class RemoteFiles:
    """CAS files over a transport. `name` is what people call the remote."""

    def __init__(self, transport: Transport, name: str, connections: int) -> None:
        self.transport = transport
        self.name = name
        self._connections = connections
        self._lock = threading.Lock()
        self._pools: dict[bool, ThreadPoolExecutor] = {}
        #: Files that are known to be there, and when they were seen (monotonic).
        self._seen: dict[str, float] = {}
        #: The bytes of small files that came with an entry, and how many there are.
        self._known: dict[str, bytes] = {}
        self._known_size = 0
        #: Files and blobs that are not there as they are called. They are sent again, where the place allows it.
        self.wrong: set[str] = set()

    def know(self, file: Output, data: bytes) -> None:
        """The bytes of a file that came in another way. They are compared with its name, and dropped if they differ."""
        if file.sha256 not in self._known and self._known_size + len(data) <= _MOST_KNOWN and is_file(file, data):
            self._known[file.sha256] = data
            self._known_size += len(data)

    def get(self, file: Output, *, timed: bool = False) -> bytes | None:
        """The bytes of a file, or None; `timed` as in `Transport`, and for all small ones. Raises RemoteFault."""
        if file.sha256 in self._known:
            return self._known[file.sha256]
        try:
            timed = timed or file.size <= _SMALL
            data = self.transport.get("cas", file.sha256, file.size, timed=timed)
        except RemoteLied:
            self.wrong.add(file.sha256)
            raise
        if data is not None and not is_file(file, data):
            self.wrong.add(file.sha256)
            raise self.lie(f"cas/{file.sha256} has other bytes than its name says; it begins with {data[:24]!r}")
        return data

    def demand(self, file: Output) -> bytes:
        """The bytes of a file that was named. Raises BlobMissing, RemoteFault."""
        data = self.get(file)
        if data is None:
            self._seen.pop(file.sha256, None)
            raise BlobMissing(f"{file.sha256} is gone from {self.name}")
        return data

    def send(self, files: Iterable[Output], read: Read, *, sure: bool = False) -> None:
        """Have files there, with the bytes that `read` gives. `sure`: look even for those that were seen before. Raises
        RemoteFault, and what `read` raises."""

        def send_one(file: Output) -> None:
            if file.sha256 in self.wrong:
                if self.transport.put("cas", file.sha256, read(file), once=False):
                    self.wrong.discard(file.sha256)
                    self._seen[file.sha256] = time.monotonic()
            elif sure or not self._was_seen(file):
                if not self.transport.has("cas", file.sha256):
                    self.transport.put("cas", file.sha256, read(file), once=True)
                self._seen[file.sha256] = time.monotonic()

        for _ in self.over(send_one, dict.fromkeys(files), sending=True):
            pass

    def _was_seen(self, file: Output) -> bool:
        seen = self._seen.get(file.sha256)
        return seen is not None and time.monotonic() - seen < TRUSTED_S / 2

    def all_there(self, files: Iterable[Output]) -> bool:
        """Whether all of them are there now. Raises RemoteFault."""

        def is_there(file: Output) -> bool:
            return file.sha256 not in self.wrong and self.transport.has("cas", file.sha256)

        return all(self.over(is_there, dict.fromkeys(files)))

    def lie(self, text: str) -> RemoteLied:
        """The fault to raise, which counts against the remote."""
        fault = RemoteLied(f"{self.transport.place}: {text}")
        blame: Callable[[RemoteLied], None] | None = getattr(self.transport, "blame", None)
        if blame is not None:
            blame(fault)
        return fault

    def over(self, work: Callable[[Any], Any], items: Iterable[Any], *, sending: bool = False) -> Iterator[Any]:
        """What `work` gives for each of `items`, in order; done ahead, over the connections. Equal items that follow
        closely are done once. The first error ends it; what was begun is waited for. `work` must not call this."""
        with self._lock:
            if sending not in self._pools:
                self._pools[sending] = ThreadPoolExecutor(self._connections, thread_name_prefix=f"remote-{self.name}")
            pool = self._pools[sending]
        waiting: deque[tuple[Any, Future[Any]]] = deque()
        running: dict[Any, Future[Any]] = {}
        try:
            for item in items:
                future = running.get(item)
                if future is None:
                    future = running[item] = pool.submit(work, item)
                waiting.append((item, future))
                if len(waiting) >= self._connections + _AHEAD:
                    done, first = waiting.popleft()
                    yield first.result()
                    if all(other is not first for _, other in waiting):
                        del running[done]
            while waiting:
                yield waiting.popleft()[1].result()
        finally:
            for _, future in waiting:
                future.cancel()
            for _, future in waiting:
                if not future.cancelled():
                    future.exception()

    def close(self) -> None:
        """End the threads and let go of the connections."""
        with self._lock:
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        self.transport.close()


def is_file(file: Output, data: bytes | memoryview) -> bool:
    """Whether `data` is what a CAS file's name says."""
    return len(data) == file.size and hashlib.sha256(data).hexdigest() == file.sha256
