"""The servers that have loaded torch and fork workers: their workers, their end, and new workers if no server can fork.

In a test with the mark `cold_workers`, no worker is forked from the servers of the test run (`tests.warm`).
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.processes import alive, descendants, wait_until_gone
from trtbuild.driver.workers.environments import worker_environment
from trtbuild.driver.workers.forking.owner import CAN_FORK_WORKERS, FORKED_KINDS, ForkServers
from trtbuild.driver.workers.forking.requests import receive_client
from trtbuild.driver.workers.forking.server import ForkServer
from trtbuild.driver.workers.worker_process import Worker, WorkerDied
from trtbuild.errors import InternalError

pytestmark = pytest.mark.skipif(not CAN_FORK_WORKERS, reason="this system cannot fork workers")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServers]:
    started = ForkServers(worker_environment("trace"), tmp_path_factory.mktemp("servers"))
    pids = [started.pid, *descendants(started.pid)]
    yield started
    started.close()
    wait_until_gone(pids)


@pytest.fixture
def worker(servers: ForkServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """A torch worker with ``CUDA_VISIBLE_DEVICES=1``. It has answered a job, so its program runs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    started = Worker("torch", tmp_path / "store", tmp_path, servers=servers)
    _send_unknown_task(started)
    yield started
    started.kill()
    started.end()


def _send_unknown_task(worker: Worker) -> None:
    """Send a job that the worker rejects. The reply shows that the worker's program runs."""
    with pytest.raises(InternalError, match="KeyError: 'no task'"):
        worker.call({"task": "no task"})


def _forked_pids(servers: ForkServers) -> list[int]:
    """The pids of the forked torch workers. Their server is the first child of the process `servers.pid`."""
    return [pid for server in descendants(servers.pid)[:1] for pid in descendants(server)]


def test_a_torch_worker_is_a_copy_of_the_server_and_ends_with_its_client(servers: ForkServers, worker: Worker) -> None:
    (pid,) = _forked_pids(servers)
    assert "torch" in Path(f"/proc/{pid}/maps").read_text()
    assert os.getsid(pid) == pid  # Ctrl-C does not reach it
    worker.kill()
    wait_until_gone([pid])
    assert servers.is_alive


def test_the_error_of_a_forked_worker_names_its_signal(servers: ForkServers, worker: Worker) -> None:
    (pid,) = _forked_pids(servers)
    os.kill(pid, signal.SIGTERM)
    with pytest.raises(WorkerDied, match="SIGTERM"):
        worker.call({"task": "no task"})


@pytest.mark.cold_workers
def test_a_client_and_its_server_may_have_different_encodings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``PYTHONUTF8`` has no effect on the client, which is started with ``-I``."""
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "OWNER": "Jürgen"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    project = tmp_path / "für alle"
    project.mkdir()
    servers = ForkServers(worker_environment("trace"), tmp_path)
    worker = Worker("torch", tmp_path / "store", project, servers=servers)
    _send_unknown_task(worker)
    (pid,) = _forked_pids(servers)
    assert Path(f"/proc/{pid}/cwd").readlink() == project
    worker.end()
    servers.close()


@pytest.mark.cold_workers
def test_without_a_server_the_client_becomes_a_new_worker(tmp_path: Path) -> None:
    servers = ForkServers(worker_environment("trace"), tmp_path)
    os.killpg(servers.pid, signal.SIGKILL)
    wait_until_gone([servers.pid])
    assert not servers.is_alive
    worker = Worker("torch", tmp_path / "store", tmp_path, servers=servers)
    _send_unknown_task(worker)
    assert alive(worker._process.pid)
    assert "torch" in Path(f"/proc/{worker._process.pid}/maps").read_text()
    worker.end()
    servers.close()


def test_no_worker_that_uses_gpus_is_forked_after_the_gpu_driver_was_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ForkServer, "GPU_DRIVER", "libc.so")  # a library that every process has mapped
    owner, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client, connection = socket.socketpair()
    with owner, control, client:
        with connection:
            socket.send_fds(owner, [b"c"], [connection.fileno()])
        with open(os.devnull, "rb") as stream:
            request = b"\3\0\0\0abc"  # the length and three bytes
            socket.send_fds(client, [request], [stream.fileno()] * 3)
        server = ForkServer(control.fileno(), receive_client, uses_gpu=True)
        assert server.handle({control.fileno()}) is None
        assert client.recv(1) == b""  # refused, so the client becomes a new worker


def test_a_worker_with_other_variables_of_libraries_is_not_forked(servers: ForkServers) -> None:
    environment = worker_environment("trace")
    assert servers.can_fork("trace", {**environment, "TRTBUILD_DOMAIN": "a", "PWD": "/b"})
    assert servers.can_fork("torch", {**environment, "CUDA_VISIBLE_DEVICES": "1"})
    assert not servers.can_fork("trace", {**environment, "CUDA_VISIBLE_DEVICES": "1"})
    assert not servers.can_fork("torch", {**environment, "OMP_NUM_THREADS": "7"})


def test_a_forked_worker_has_the_umask_and_the_directory_of_its_client(servers: ForkServers, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        started = Worker("torch", tmp_path / "store", tmp_path, servers=servers)
        _send_unknown_task(started)
    finally:
        os.umask(before)
    (pid,) = _forked_pids(servers)
    assert "Umask:\t0027" in Path(f"/proc/{pid}/status").read_text()
    assert Path(f"/proc/{pid}/cwd").resolve() == tmp_path
    started.end()


@pytest.mark.cold_workers
def test_servers_end_without_an_error_when_their_owner_closes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`close` closes the servers' standard input before their sockets: a server fails if its socket ends first."""
    servers = ForkServers(worker_environment("trace"), tmp_path)
    for kind in FORKED_KINDS:  # after the loop, both servers wait for requests
        worker = Worker(kind, tmp_path / "store", tmp_path, servers=servers)
        _send_unknown_task(worker)
        worker.end()
    close_controls = servers._close_controls

    def close_controls_slowly() -> None:
        close_controls()
        time.sleep(0.5)

    monkeypatch.setattr(servers, "_close_controls", close_controls_slowly)
    servers.close()
    assert servers._process.returncode == 0
