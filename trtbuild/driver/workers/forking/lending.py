"""The sources from which a pool of workers gets its servers: their interface, and the source for one build."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from trtbuild.driver.workers.environments import worker_environment
from trtbuild.driver.workers.forking.owner import CAN_FORK_WORKERS, ForkServers, lent_servers


class ServerSource(Protocol):
    """Lends servers (the processes from which workers are forked) to a pool of workers."""

    def borrow(self, folder: Path) -> ForkServers | None:
        """Return running servers, or None if this system cannot fork workers. New servers run in the directory `folder`."""

    def give_back(self, servers: ForkServers) -> None:
        """Take back servers that the pool does not use any more. Their workers have ended."""


class ServersOfBuild:
    """Starts servers for a build, and ends them after the build. A forked copy of `trtbuild watch` uses lent servers
    instead, which do not end."""

    def borrow(self, folder: Path) -> ForkServers | None:
        return lent_servers() or start_servers(folder)

    def give_back(self, servers: ForkServers) -> None:
        """End the servers, unless they are lent."""
        servers.close()


def start_servers(folder: Path) -> ForkServers | None:
    """Start servers in the directory `folder`. Return None if this system cannot fork workers."""
    return ForkServers(worker_environment("trace"), folder) if CAN_FORK_WORKERS else None
