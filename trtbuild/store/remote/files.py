"""Fetches, verifies and sends the CAS files of a remote, several in parallel.

A CAS file is named by its SHA-256. It is a blob, a chunk of a large blob, or the document of a record.

Rules
1. Each file is compared with its digest and its size, and is not read beyond its size. If a file
   differs, RemoteLied is raised, and the file counts as missing.
2. A file that is in the remote is not sent again, unless it is damaged there. So an interrupted upload continues where it
   stopped.
3. At most `PUBLISHING_LIMIT_S` after a file was seen in the remote, the entry that names it is published. `send` looks up a
   file again if it was last seen half of this time ago or earlier. The other half remains for publishing the entry. A
   collection of the remote waits longer than `PUBLISHING_LIMIT_S` before it removes a file
   (collection/shared_directory.py).
4. Only a few files are fetched ahead of the consumer, because they are in memory. Uploads have separate threads, so that
   planning does not wait for an upload.
"""

from __future__ import annotations

import contextlib
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

#: A CAS file of a blob with more bytes is rejected. trtbuild writes at most 1 MiB (chunking.py). The document of a record
#: may be larger.
MAX_FILE_SIZE = 4 << 20

#: An entry is published at most this many seconds after its files were seen in the remote (rule 3).
PUBLISHING_LIMIT_S = 1800.0

# Reading a file of at most this many bytes has a total time limit (`timed`, rule 3 of transport.py), because planning reads
# mostly such files.
_SMALL_FILE_SIZE = 64 << 10

# The number of files that may wait, besides those that the connections are transferring.
_MAX_WAITING_FILES = 16

# The limit, in bytes, of the files that came inside entries and are kept in memory. The lists of dependencies of a hundred
# traces (core/recipes/chain.py) have a few MiB.
_MAX_CONTENTS_SIZE = 64 << 20

#: A function that returns the bytes of a CAS file.
ReadFile = Callable[[Output], "bytes | memoryview"]


class RemoteFiles:
    """The CAS files of the remote `name`."""

    def __init__(self, transport: Transport, name: str, connections: int) -> None:
        self.transport = transport
        self.name = name
        self._connections = connections
        self._lock = threading.Lock()
        #: True → the threads that send, False → the threads that fetch.
        self._pools: dict[bool, ThreadPoolExecutor] = {}
        #: SHA-256 of a file → the time at which it was seen in the remote (monotonic).
        self._seen: dict[str, float] = {}
        #: SHA-256 → the bytes of a small file that came inside an entry.
        self._contents: dict[str, bytes] = {}
        self._contents_size = 0
        #: SHA-256 of the files and blobs that are damaged in the remote. `send` replaces them, if the remote allows it.
        self.damaged_digests: set[str] = set()

    def add_contents(self, file: Output, data: bytes) -> None:
        """Keep the bytes of a file that came inside an entry, if they have the file's size and digest."""
        if (
            file.sha256 not in self._contents
            and self._contents_size + len(data) <= _MAX_CONTENTS_SIZE
            and matches_file(file, data)
        ):
            self._contents[file.sha256] = data
            self._contents_size += len(data)

    def get(self, file: Output, *, timed: bool = False) -> bytes | None:
        """The bytes of a file, or None if it is missing. `timed` limits the total time, as in `Transport.get`. Small files
        always have this limit. Raises RemoteFault."""
        if file.sha256 in self._contents:
            return self._contents[file.sha256]
        return self._get_from_remote(file, timed=timed)

    def _get_from_remote(self, file: Output, *, timed: bool = False) -> bytes | None:
        """Like `get`, but does not use the bytes that came inside an entry."""
        try:
            timed = timed or file.size <= _SMALL_FILE_SIZE
            data = self.transport.get("cas", file.sha256, file.size, timed=timed)
        except RemoteLied:
            self.damaged_digests.add(file.sha256)
            raise
        if data is not None and not matches_file(file, data):
            self.damaged_digests.add(file.sha256)
            raise self.report_lie(f"cas/{file.sha256} does not match its digest; it begins with {data[:24]!r}")
        return data

    def get_existing(self, file: Output) -> bytes:
        """The bytes of a file. Raises RemoteFault, and BlobMissing if the file is missing."""
        data = self.get(file)
        if data is None:
            self._seen.pop(file.sha256, None)
            raise BlobMissing(f"{file.sha256} is gone from {self.name}")
        return data

    def send(self, files: Iterable[Output], read: ReadFile, *, recheck: bool = False) -> None:
        """Send the files that the remote lacks. `read` returns their bytes. With `recheck`, a file is also looked up
        again if it was seen a short time ago (rule 3). Raises RemoteFault, and the errors of `read`."""

        def send_one(file: Output) -> None:
            if file.sha256 in self.damaged_digests:
                if self.transport.put("cas", file.sha256, read(file), once=False):
                    self.damaged_digests.discard(file.sha256)
                    self._seen[file.sha256] = time.monotonic()
            elif recheck or not self._was_seen(file):
                if not self.transport.has("cas", file.sha256):
                    self.transport.put("cas", file.sha256, read(file), once=True)
                self._seen[file.sha256] = time.monotonic()

        for _ in self.map_in_parallel(send_one, dict.fromkeys(files), sending=True):
            pass

    def repair(self, files: Iterable[Output], read: ReadFile) -> bool:
        """Read files, and send those that are missing or damaged in the remote. Returns whether at least one was sent.

        `read` returns the bytes to send. Raises RemoteFault, and the errors of `read`."""

        def repair_one(file: Output) -> bool:
            with contextlib.suppress(RemoteLied):  # a damaged file
                if self._get_from_remote(file) is not None:
                    return False
            if not self.transport.put("cas", file.sha256, read(file), once=False):
                return False
            self.damaged_digests.discard(file.sha256)
            self._seen[file.sha256] = time.monotonic()
            return True

        return any(list(self.map_in_parallel(repair_one, dict.fromkeys(files), sending=True)))

    def _was_seen(self, file: Output) -> bool:
        seen = self._seen.get(file.sha256)
        return seen is not None and time.monotonic() - seen < PUBLISHING_LIMIT_S / 2

    def has_all(self, files: Iterable[Output]) -> bool:
        """Whether all files are in the remote now. Raises RemoteFault."""

        def is_there(file: Output) -> bool:
            return file.sha256 not in self.damaged_digests and self.transport.has("cas", file.sha256)

        return all(self.map_in_parallel(is_there, dict.fromkeys(files)))

    def report_lie(self, text: str) -> RemoteLied:
        """Count wrong content as a fault of the remote, and return the error to raise."""
        fault = RemoteLied(f"{self.transport.place}: {text}")
        self.transport.count_fault(fault)
        return fault

    def map_in_parallel(
        self, work: Callable[[Any], Any], items: Iterable[Any], *, sending: bool = False
    ) -> Iterator[Any]:
        """Yield the result of `work` for each of `items`, in order.

        There is one thread for each connection, and `work` runs a few items ahead. For equal items that are close to each
        other, it runs once. The first error is raised after the running calls have ended. `work` must not call this method,
        because it could wait for its own thread."""
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
                if len(waiting) >= self._connections + _MAX_WAITING_FILES:
                    first_item, first_future = waiting.popleft()
                    yield first_future.result()
                    if all(future is not first_future for _, future in waiting):
                        del running[first_item]
            while waiting:
                yield waiting.popleft()[1].result()
        finally:
            for _, future in waiting:
                future.cancel()
            for _, future in waiting:
                if not future.cancelled():
                    future.exception()

    def close(self) -> None:
        """End the threads and close the connections."""
        with self._lock:
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        self.transport.close()


def matches_file(file: Output, data: bytes | memoryview) -> bool:
    """Whether `data` has the size and the digest of a CAS file."""
    return len(data) == file.size and hashlib.sha256(data).hexdigest() == file.sha256
