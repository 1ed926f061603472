"""Keep alive the processes that have loaded torch, from one `trtbuild.compile` call of a program to the next.

Rules
1. The processes end when no module was compiled for `IDLE_S` seconds, and when the program ends.
2. The next compilation replaces the processes if one has ended, if an environment variable of the program has changed,
   or if a distribution was installed or removed. Some variables may change, because no library reads them at load time
   (`FREE_VARIABLES` and `FREE_PREFIX` in `trtbuild.driver.workers.environments`).
3. Several threads may use the processes at the same time. A forked copy of the program does not use them, and starts new
   ones.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from pathlib import Path

from trtbuild import null_build
from trtbuild.driver.workers.environments import worker_environment
from trtbuild.driver.workers.forking import lending
from trtbuild.driver.workers.forking.owner import ForkServers

#: Seconds without a compilation after which the processes end, because they use a few hundred MB of memory.
IDLE_S = 60.0

#: The last parts of directories in which distributions are installed.
_DISTRIBUTION_FOLDERS = ("site-packages", "dist-packages")


class KeptServers:
    """A `ServerSource` that keeps its servers while it lends them, and for `idle_s` seconds afterwards. Thread-safe.

    A server is a process that has loaded torch, and from which workers are forked.
    """

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._start_again()

    def _start_again(self) -> None:
        """Begin without servers. A forked copy of the program does this, too, because it must not use the servers."""
        self._lock = threading.Lock()
        self._servers: ForkServers | None = None
        self._installed: object = None
        #: Servers that were lent → how many pools use them.
        self._borrowers: dict[ForkServers, int] = {}
        self._timer: threading.Timer | None = None

    def borrow(self, folder: Path) -> ForkServers | None:
        """Return the kept servers, or new ones (rule 2). None if this system cannot fork workers."""
        with self._lock:
            self._stop_timer()
            kept = self._servers
            if kept is not None and (not self._suits(kept) or self._installed != _installed_distributions()):
                self._servers = None
                if kept not in self._borrowers:
                    kept.close()
            if self._servers is None:
                self._installed = _installed_distributions()
                self._servers = lending.start_servers(folder)
            if self._servers is not None:
                self._borrowers[self._servers] = self._borrowers.get(self._servers, 0) + 1
            return self._servers

    def give_back(self, servers: ForkServers) -> None:
        """End the use of `servers` by one pool. Keep them, unless new ones have replaced them."""
        with self._lock:
            count = self._borrowers.pop(servers, 1) - 1
            if count:
                self._borrowers[servers] = count
            elif servers is not self._servers:
                servers.close()
            elif self._timer is None:
                self._timer = threading.Timer(self._idle_s, self.close_idle)
                self._timer.daemon = True
                self._timer.start()

    def close_idle(self) -> None:
        """End the servers if no pool uses them."""
        with self._lock:
            self._stop_timer()
            if self._servers is not None and self._servers not in self._borrowers:
                self._servers.close()
                self._servers = None

    def _suits(self, servers: ForkServers) -> bool:
        return servers.is_alive and servers.can_fork("trace", worker_environment("trace"))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _installed_distributions() -> list[tuple[Path, list[int]]]:
    """The state of each directory on `sys.path` in which distributions are installed. An installation changes the state."""
    states = []
    for folder in map(Path, sys.path):
        if folder.name in _DISTRIBUTION_FOLDERS:
            with contextlib.suppress(OSError):
                states.append((folder, null_build.identity(folder.stat())))
    return states


KEPT = KeptServers()
atexit.register(KEPT.close_idle)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=KEPT._start_again)
