"""The servers that a worker pool borrows to fork workers from them, and idle workers that have died."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import cast

import pytest

from trtbuild.driver.workers.forking.owner import ForkServers
from trtbuild.driver.workers.pool import WorkerPool
from trtbuild.driver.workers.worker_process import Worker


class FakeServers:
    """Servers that fork no worker. So each worker is started as a new process."""

    is_alive = True

    def can_fork(self, *_: object) -> bool:
        return False


class FakeSource:
    """Lends the same servers to several pools. `borrowers` is the number of pools that use them."""

    def __init__(self) -> None:
        self.servers = cast(ForkServers, FakeServers())
        self.borrowers = 0

    def borrow(self, folder: Path) -> ForkServers:
        self.borrowers += 1
        return self.servers

    def give_back(self, servers: ForkServers) -> None:
        assert servers is self.servers
        self.borrowers -= 1


def test_a_pool_that_is_closed_twice_gives_its_servers_back_once(tmp_path: Path) -> None:
    """An interrupted build closes its pool twice. Another build in the same process can still use the servers."""
    source = FakeSource()
    pools = [WorkerPool(tmp_path / "cache", tmp_path, source) for _ in range(2)]
    for pool in pools:
        pool._keep(pool._start("trace"))
    assert source.borrowers == 2
    pools[0].close(kill=True)
    pools[0].close(kill=True)
    assert source.borrowers == 1
    pools[1].close(kill=True)
    assert source.borrowers == 0


def test_servers_that_cannot_be_replaced_are_given_back_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FakeSource()
    pool = WorkerPool(tmp_path / "cache", tmp_path, source)
    pool._keep(pool._start("trace"))
    monkeypatch.setattr(FakeServers, "is_alive", False)

    def no_process(folder: Path) -> ForkServers:
        raise OSError("no more processes")

    monkeypatch.setattr(source, "borrow", no_process)
    with pytest.raises(OSError, match="no more processes"):
        pool._start("trace")
    pool.close(kill=True)
    assert source.borrowers == 0


def test_an_idle_worker_that_has_died_is_closed_and_replaced(tmp_path: Path) -> None:
    pool = WorkerPool(tmp_path / "cache", tmp_path)
    dead: Worker = pool._start("engine")
    pool._keep(dead)
    os.kill(dead._process.pid, signal.SIGKILL)
    dead._process.wait(60)
    replacing = pool._take("engine", None, dead.imports, new=False)
    try:
        assert replacing is not dead and replacing.is_alive
        assert dead._log.closed
    finally:
        pool._give_back(replacing, reusable=False)
        pool.close(kill=True)
