"""The settings of one remote in the user's configuration."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RemoteSettings:
    """One ``[[remote]]`` of the configuration. `url` may contain credentials: show `Transport.place` instead."""

    name: str
    url: str = field(repr=False)
    read: bool = True
    write: bool = True
    #: Seconds of silence (while connecting, until the first byte, or between bytes) after which trtbuild stops using
    #: the remote.
    patience_s: float = 4.0
    #: The number of parallel connections.
    connections: int = 16
