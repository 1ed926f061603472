"""The interface of a transport, which reads and writes the entries of a remote.

A ``cas`` entry with a small blob, or with a chunk of a larger blob, has at most 1 MiB (chunking.py). Other entries may be
larger.

Rules
1. A call is one attempt: a transport does not retry, and does not remember failures. `patience.PatientTransport` wraps a
   transport and does both.
2. A transport does not verify bytes: its caller does. But a transport stops reading at `limit`, and raises RemoteDown for
   a body that is shorter than announced.
3. Silence is limited by `patience_s` (settings.py): while connecting, until the first byte, and while bytes are sent or
   received. Fewer bytes a second than `MIN_BYTES_PER_S` count as silence. A `timed` call has a total limit, too:
   `TIMED_FACTOR` times `patience_s`, because a plan waits for the call. Other calls have no total limit.
4. An entry appears complete or not at all.
5. No error, log or repr contains credentials. Credentials are sent only to the host that they are configured for.
6. Several threads may call all methods at once.
7. Every user of a remote may read the entries of all others. If entries are files, they have the group of the shared
   directory, and its read and write permissions. The umask of the writer does not matter (shared_folder.py).
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
    """The entries of a remote: ``cas`` (blobs and chunks) by SHA-256, ``ac`` (records, chunk lists) by key.

    A subclass sets `place`, and implements `get`, `has` and `put`. The other members have defaults.
    """

    #: The place, for people: a URL without credentials (`credentials.public_place` returns it).
    place: str
    #: Whether `put` with `once` returns True for exactly one of several simultaneous writers. A server that first looks and
    #: then writes (WebDAV) may accept several writers. Then the last writer's entry stays.
    decides_races: bool = False
    #: Warnings for the user, for example that this remote gets a password without encryption.
    warnings: Sequence[str] = ()

    @abstractmethod
    def get(self, kind: Kind, name: str, limit: int, *, timed: bool = False) -> bytes | None:
        """The entry's bytes, or None when there is no such entry.

        Raises RemoteRefused and RemoteDown. Raises RemoteLied if there are more than `limit` bytes. With `timed`,
        RemoteDown is raised after `TIMED_FACTOR` times `patience_s`.
        """

    @abstractmethod
    def has(self, kind: Kind, name: str) -> bool:
        """Whether the entry exists. Marks it as used, if the remote stores the time of use. Raises RemoteRefused and
        RemoteDown. Raises RemoteLied if the answer is a page of HTML."""

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
        """The requests and faults that this transport has counted."""
        return RemoteReport(warnings=tuple(self.warnings))
