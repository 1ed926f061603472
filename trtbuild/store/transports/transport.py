"""What carries the entries of a remote. One small interface: every file of a store is at most a few MiB (chunking.py).

Rules
1. A call is one attempt: no retries, no memory of earlier failures. `patience.Patient` wraps a transport and adds those.
2. Nothing is believed: a transport says what it got, whoever asked compares it with its name. But it stops reading at
   `limit`, and a body that is shorter than it was announced is RemoteDown, not data.
3. Time is limited where nothing happens: to connect, to the first byte, and while bytes come or go. Bytes that come more
   slowly than `SLOWEST` count as none. What a plan waits for (`timed`) is limited as a whole, too: by `WHOLE` times the
   patience. Nothing else is.
4. An entry appears whole or not at all.
5. No error, log or repr has a credential in it. None is sent to another host than the one that it was given for.
6. All methods may be called from several threads at once.
"""

from __future__ import annotations

from typing import Protocol

from trtbuild.store.local.layout import Kind

#: Bytes a second, over `Patience.idle_s`, below which a remote counts as silent.
SLOWEST = 8 << 10

#: Patiences that an entry may take from its request to its last byte, where somebody waits for it (rule 3).
WHOLE = 2.5


class Transport(Protocol):
    """Named entries somewhere else: ``cas`` by SHA-256, ``ac`` by key."""

    #: The place, for people: a URL without credentials.
    place: str
    #: Whether exactly one of several first writers at the same moment is told that it was first. A server that looks and
    #: then writes (WebDAV) tells several, and what the last of them wrote stays.
    decides: bool

    def get(self, kind: Kind, name: str, limit: int, *, timed: bool = False) -> bytes | None:
        """The entry's bytes, or None when it is not there. `timed`: within `WHOLE` patiences, or RemoteDown.

        Raises RemoteLied when there are more than `limit` bytes, RemoteRefused, RemoteDown.
        """

    def has(self, kind: Kind, name: str) -> bool:
        """Whether the entry is there. It counts as used. Raises RemoteLied (a page of HTML), RemoteRefused, RemoteDown."""

    def put(self, kind: Kind, name: str, data: bytes | memoryview, *, once: bool) -> bool:
        """Leave an entry there. With `once` not in place of another. False: there was one, and it stays.

        A place that cannot be told to write once (a plain WebDAV server) may replace it; that is said in its docs.
        Raises RemoteFull, RemoteRefused, RemoteDown.
        """

    def close(self) -> None:
        """Let go of connections."""
