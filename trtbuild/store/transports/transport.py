"""The interface of a transport, which reads and writes the entries of a remote.

Here, an entry is any file of a remote, in ``ac/`` or ``cas/``. An entry with a small blob, or with a chunk of a large blob,
has at most 1 MiB (chunking.py). Other entries may be larger.

Rules
1. A call is one attempt. `patience.PatientTransport` wraps a transport, retries its calls and remembers failures.
2. The caller verifies the bytes. But a transport stops reading at `limit`, and raises RemoteDown for a body that is shorter
   than announced.
3. A remote may be silent for `patience_s` (settings.py): while connecting, until the first byte, and while bytes are sent
   or received. Fewer bytes a second than `MIN_BYTES_PER_S` count as silence. A `timed` call also has a total limit of
   `TIMED_FACTOR` times `patience_s`, because a plan waits for the call.
4. An entry appears complete or not at all.
5. No error, log or repr contains credentials. Credentials are sent only to the host that they are configured for.
6. Several threads may call the methods at the same time.
7. Every user of a remote may read the entries of all other users. In a shared directory, entries are files. They have the
   directory's group, and its read and write permissions. The umask of the writer does not matter (shared_folder.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from trtbuild.errors import RemoteFault
from trtbuild.store.local.layout import Kind
from trtbuild.store.transports.report import RemoteReport

#: A remote that moves fewer bytes a second than this, for `patience_s`, counts as silent.
MIN_BYTES_PER_S = 8 << 10

#: The time limit of a timed call, from the request to the last byte, as a multiple of `patience_s` (rule 3).
TIMED_FACTOR = 2.5


class Transport(ABC):
    """The entries of a remote: ``cas`` (blobs, chunks, record documents) by SHA-256, ``ac`` (lists of such files) by key.

    A subclass sets `place`, and implements `get`, `has` and `put`.
    """

    #: The URL without credentials, for people (`credentials.public_place`).
    place: str
    #: Whether `put` with `once` returns True for exactly one of several simultaneous writers. A server that first looks for
    #: the entry and then writes it (WebDAV) may accept several writers. The last writer's entry then stays. A transport may
    #: learn from a write that this is so: from an object store without ``If-None-Match`` (objects.py, rule 3), or from a
    #: file system without hard links. It then sets False.
    decides_races: bool = False
    #: Warnings for the user, for example that this remote gets a password without encryption.
    warnings: Sequence[str] = ()

    @abstractmethod
    def get(self, kind: Kind, name: str, limit: int, *, timed: bool = False) -> bytes | None:
        """The entry's bytes, or None if there is no such entry. `timed` limits the total time (rule 3).

        Raises RemoteRefused, RemoteDown, and RemoteLied for an answer that cannot be the entry, for example one with more
        than `limit` bytes, a page of HTML, or something that is not a regular file.
        """

    @abstractmethod
    def has(self, kind: Kind, name: str) -> bool:
        """Whether the entry exists. Marks it as used, if the remote stores the time of use. Raises RemoteRefused,
        RemoteDown, and RemoteLied if the answer is a page of HTML."""

    @abstractmethod
    def put(self, kind: Kind, name: str, data: bytes | memoryview, *, once: bool) -> bool:
        """Write an entry. With `once`, an existing entry stays, and False is returned.

        A server that cannot write once (plain WebDAV) may replace the entry; docs/team-cache.md lists such servers.
        Raises RemoteFull, RemoteRefused, RemoteDown.
        """

    def close(self) -> None:  # noqa: B027 - most transports hold nothing open
        """Close the connections."""

    def count_fault(self, fault: RemoteFault) -> None:  # noqa: B027 - only `patience.PatientTransport` counts faults
        """Count a fault that the caller found in an entry."""

    def report(self) -> RemoteReport:
        """The requests, bytes and faults that this transport has counted."""
        return RemoteReport(warnings=tuple(self.warnings))
