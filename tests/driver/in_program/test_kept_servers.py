"""Servers stay from one `trtbuild.compile` to the next. A server is a process that has loaded torch and forks workers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.faults.processes import wait_until_gone
from trtbuild.driver.in_program.kept_servers import KEPT, KeptServers
from trtbuild.driver.workers.forking.owner import CAN_FORK_WORKERS

pytestmark = [
    pytest.mark.cold_workers,  # these tests start real servers, and do not use those of the test run
    pytest.mark.skipif(not CAN_FORK_WORKERS, reason="this system cannot fork workers"),
]

#: A program that starts servers, and prints the id of the process that has loaded torch. If the argument is ``killed``,
#: SIGKILL ends the program.
PROGRAM = """\
import os, sys
from pathlib import Path
from trtbuild.driver.in_program.kept_servers import KEPT

servers = KEPT.borrow(Path.cwd())
KEPT.give_back(servers)
print(servers.pid, flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def kept() -> Iterator[KeptServers]:
    """A source of servers that stay for the whole test."""
    source = KeptServers(idle_s=600)
    yield source
    source.close_idle()


def _pid(kept: KeptServers) -> int | None:
    return None if kept._servers is None else kept._servers.pid


def test_the_next_compilation_uses_the_servers_of_the_one_before(
    compile_module: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = []
    for width in (3, 5):
        compile_module(torch.nn.Linear(8, width).eval(), [torch.zeros(2, 8)], cache_dir=tmp_path)
        pids.append(_pid(KEPT))
    assert pids[0] is not None and pids[0] == pids[1]
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # this environment variable is read when torch is imported
    compile_module(torch.nn.Linear(8, 7).eval(), [torch.zeros(2, 8)], cache_dir=tmp_path)
    assert _pid(KEPT) not in (None, pids[0])
    wait_until_gone([pids[0]])


@pytest.mark.parametrize("end", ["ended", "killed"])
def test_servers_end_with_the_program(end: str, tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, end], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert process.returncode == (0 if end == "ended" else -9), process.stderr
    wait_until_gone([int(process.stdout)])


def test_servers_that_are_not_used_end(tmp_path: Path) -> None:
    kept = KeptServers(idle_s=0.2)
    servers = kept.borrow(tmp_path)
    assert servers is not None
    time.sleep(0.5)
    assert servers.is_alive  # they are in use
    kept.give_back(servers)
    wait_until_gone([servers.pid])
    kept.close_idle()  # waits for the timer's thread, which holds the lock
    assert _pid(kept) is None


def test_new_servers_replace_the_old_ones_after_a_distribution_is_installed(
    kept: KeptServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    first = kept.borrow(tmp_path)
    assert first is not None and kept.borrow(tmp_path) is first
    (folder / "another.dist-info").mkdir()
    second = kept.borrow(tmp_path)
    assert second is not None and second is not first
    kept.give_back(first)
    assert first.is_alive  # it was borrowed twice, and given back once
    kept.give_back(first)
    assert not first.is_alive and second.is_alive
    kept.give_back(second)
    assert second.is_alive


def test_a_server_that_was_killed_is_replaced(kept: KeptServers, tmp_path: Path) -> None:
    first = kept.borrow(tmp_path)
    assert first is not None
    os.killpg(first.pid, 9)
    kept.give_back(first)
    first._process.wait(30)
    second = kept.borrow(tmp_path)
    assert second is not None and second is not first and second.is_alive
    kept.give_back(second)


def test_a_forked_copy_of_the_program_does_not_use_its_servers(tmp_path: Path) -> None:
    servers = KEPT.borrow(tmp_path)
    assert servers is not None
    child = os.fork()
    if child == 0:
        os._exit(0 if KEPT._servers is None and not KEPT._borrowers else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert servers.is_alive
    KEPT.give_back(servers)


def test_threads_share_servers(kept: KeptServers, tmp_path: Path) -> None:
    borrowed: list[Any] = []
    threads = [threading.Thread(target=lambda: borrowed.append(kept.borrow(tmp_path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(borrowed) == 8 and len({id(servers) for servers in borrowed}) == 1
    for servers in borrowed:
        kept.give_back(servers)
    assert borrowed[0].is_alive
