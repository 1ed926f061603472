"""What the user's configuration says of one remote."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RemoteSettings:
    """One ``[[remote]]``. `url` may hold credentials, and is never shown; `place` is what is."""

    name: str
    url: str = field(repr=False)
    read: bool = True
    write: bool = True
    #: Seconds that nothing may happen (to connect, to a first byte, between bytes) before the remote is left alone.
    patience_s: float = 4.0
    #: Parallel connections.
    connections: int = 16
