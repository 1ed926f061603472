"""Workers and schedulers that are killed, stopped or unreachable, and their certificates.

The workers are real processes that pretend to compile.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from distributed import Client
from distributed.utils import LoopRunner

from tests.driver.farm.cluster import Driver
from tests.driver.farm.servers import (
    Certificates,
    Process,
    free_port,
    killed_at_end,
    make_certificates,
    scheduler_process,
    worker_pids,
    worker_process,
)
from tests.faults.processes import alive, state
from trtbuild.driver.configuration import Configuration, WorkersSettings
from trtbuild.driver.farm import joining
from trtbuild.driver.farm.addresses import SchedulerAddress
from trtbuild.driver.farm.connecting import connect
from trtbuild.driver.farm.processes import WorkerProcess
from trtbuild.errors import EnvironmentFault, SchedulerLost, UsageError, WorkersError

#: The time limit of each wait, in seconds.
LIMIT_S = 90.0


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a scheduler without certificates."""
    port = free_port()
    with killed_at_end(scheduler_process(port, tmp_path_factory.mktemp("scheduler"))):
        yield f"tcp://127.0.0.1:{port}"


@pytest.fixture
def client(address: str, project: Path) -> Iterator[Client]:
    with connect(address, WorkersSettings(), project) as client:
        yield client


def wait_until(condition: Callable[[], object], problem: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, problem
        time.sleep(0.02)


def waiting_pids(folder: Path) -> list[int]:
    """The pids of the worker processes whose jobs wait or have waited (`pretending.py`)."""
    begun = folder / "begun"
    return [int(pid) for pid in begun.read_text().split()] if begun.exists() else []


def test_workers_run_without_the_profiler_and_the_variables_of_dask(
    address: str, client: Client, project: Path, tmp_path: Path
) -> None:
    with killed_at_end(worker_process(address, tmp_path / "worker", {}, "--slots", "1")):
        wait_until(lambda: client.scheduler_info()["workers"], "the worker has not joined")
        (names,) = client.run(lambda dask_worker: list(dask_worker.periodic_callbacks)).values()
        (variables,) = client.run(lambda: dict(os.environ)).values()
    assert "heartbeat" in names
    assert not [name for name in names if "profile" in name]
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_"):
        assert variables.get(name) == os.environ.get(name)


def test_a_step_runs_again_when_its_worker_is_killed_while_it_writes(
    address: str, client: Client, project: Path, tmp_path: Path
) -> None:
    worker = worker_process(address, tmp_path / "worker", {}, "--slots", "1", pretends="wait-in-write")
    driver = Driver(client, project, Configuration(), wait_s=LIMIT_S)
    with killed_at_end(worker), ThreadPoolExecutor(1) as thread:
        compiled = thread.submit(driver.compile)
        wait_until(lambda: waiting_pids(tmp_path / "worker"), "the worker has not begun")
        (pid,) = waiting_pids(tmp_path / "worker")
        os.kill(pid, signal.SIGKILL)
        assert compiled.result(timeout=LIMIT_S).worker.startswith(os.uname().nodename)
    assert waiting_pids(tmp_path / "worker") == [pid]
    assert not alive(pid)


def test_a_step_fails_after_the_third_death_of_its_worker(
    address: str, client: Client, project: Path, tmp_path: Path
) -> None:
    worker = worker_process(address, tmp_path / "worker", {}, "--slots", "1", pretends="wait-always")
    driver = Driver(client, project, Configuration(), wait_s=LIMIT_S)
    folder = tmp_path / "worker"
    with killed_at_end(worker), ThreadPoolExecutor(1) as thread:
        compiled = thread.submit(driver.compile)
        for death in range(3):
            wait_until(lambda: len(waiting_pids(folder)) > death, f"attempt {death} has not begun")  # noqa: B023
            os.kill(waiting_pids(folder)[death], signal.SIGKILL)
        with pytest.raises(WorkersError, match="each worker process that ran this step died"):
            compiled.result(timeout=LIMIT_S)
    assert len(waiting_pids(folder)) == 3


def test_a_worker_that_is_stopped_loses_its_job(address: str, client: Client, project: Path, tmp_path: Path) -> None:
    stopped = worker_process(address, tmp_path / "stopped", {}, "--slots", "1", pretends="wait")
    driver = Driver(client, project, Configuration(), wait_s=LIMIT_S)
    with killed_at_end(stopped), ThreadPoolExecutor(1) as thread:
        compiled = thread.submit(driver.compile)
        wait_until(lambda: waiting_pids(tmp_path / "stopped"), "the worker has not begun")
        (pid,) = worker_pids(stopped)
        os.kill(pid, signal.SIGSTOP)
        with killed_at_end(worker_process(address, tmp_path / "other", {}, "--slots", "1", pretends="compile")):
            # `state` returns None if the process was killed already
            wait_until(lambda: (state(pid) or "T")[0] == "T", "the worker is not stopped")
            assert compiled.result(timeout=LIMIT_S).worker


class Proxy:
    """Passes bytes between a new port and a scheduler. After `cut`, no connection is possible until `heal`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._refuses = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self._server.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            if self._refuses:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self._target))
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()

    def cut(self) -> int:
        """Close all connections, and return the number of closed sockets."""
        count, self._refuses = len(self._open), True
        for each in self._open:
            _shut(each)
        self._open.clear()
        return count

    def heal(self) -> None:
        self._refuses = False

    def close(self) -> None:
        self._server.close()
        self.cut()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
    except OSError:
        pass
    _shut(source)
    _shut(sink)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the socket may be closed already
        end.shutdown(socket.SHUT_RDWR)


def test_a_worker_that_loses_the_network_loses_its_job(
    address: str, client: Client, project: Path, tmp_path: Path
) -> None:
    proxy = Proxy(int(address.rpartition(":")[2]))
    far = worker_process(proxy.address, tmp_path / "far", {}, "--slots", "1", pretends="wait")
    driver = Driver(client, project, Configuration(), wait_s=LIMIT_S)
    with killed_at_end(far), ThreadPoolExecutor(1) as thread:
        compiled = thread.submit(driver.compile)
        wait_until(lambda: waiting_pids(tmp_path / "far"), "the worker has not begun")
        assert proxy.cut() > 0
        with killed_at_end(worker_process(address, tmp_path / "near", {}, "--slots", "1", pretends="compile")):
            proxy.heal()
            assert compiled.result(timeout=LIMIT_S).worker
    proxy.close()


# -- schedulers


def test_a_scheduler_that_dies_ends_the_build(project: Path, tmp_path: Path) -> None:
    port = free_port()
    scheduler = scheduler_process(port, tmp_path)
    address = f"tcp://127.0.0.1:{port}"
    worker = worker_process(address, tmp_path / "worker", {}, "--slots", "1", pretends="wait")
    with killed_at_end(scheduler, worker), connect(address, WorkersSettings(), project) as client:
        driver = Driver(client, project, Configuration(), wait_s=LIMIT_S)
        with ThreadPoolExecutor(1) as thread:
            compiled = thread.submit(driver.compile)
            wait_until(lambda: waiting_pids(tmp_path / "worker"), "the worker has not begun")
            scheduler.kill()
            with pytest.raises(SchedulerLost):
                compiled.result(timeout=LIMIT_S)
            with pytest.raises(SchedulerLost):
                driver.compile(b"next")


def test_a_scheduler_that_refuses_is_an_error_before_any_work(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtbuild.driver.farm.connecting.CONNECT_TIMEOUT_S", 1.0)
    with (
        pytest.raises(EnvironmentFault, match="cannot be used"),
        connect(f"tcp://127.0.0.1:{free_port()}", WorkersSettings(), project),
    ):
        pass


@pytest.fixture
def _no_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector, which would close clients that trtbuild has left open."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(64)])
@pytest.mark.usefixtures("_no_garbage_collection")
def test_a_server_that_is_not_a_scheduler_is_an_error_before_any_work(
    project: Path, greeting: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtbuild.driver.farm.connecting.CONNECT_TIMEOUT_S", 1.0)
    earlier_loops = set(LoopRunner._all_loops)  # other tests may have left clients open
    seen = threading.Event()
    server = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            connections.append(connection)
            seen.set()
            with contextlib.suppress(OSError):  # the client may have closed the connection
                connection.sendall(greeting)

    threading.Thread(target=accept, daemon=True).start()
    for _ in range(20):  # on a busy machine, the timeout may expire before the client has connected
        with (
            pytest.raises(EnvironmentFault, match="cannot be used"),
            connect(f"tcp://127.0.0.1:{server.getsockname()[1]}", WorkersSettings(), project),
        ):
            pass
        if seen.is_set():
            break
    assert seen.is_set(), "no client has connected to the server"
    server.close()
    for connection in connections:
        connection.close()
    wait_until(lambda: not set(LoopRunner._all_loops) - earlier_loops, "a client is open")


# -- certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates") / "first")


def test_only_a_certificate_of_the_same_authority_is_accepted(
    certificates: Certificates, project: Path, tmp_path: Path
) -> None:
    port = free_port()
    address = f"tls://127.0.0.1:{port}"
    right_settings = WorkersSettings(None, **vars(certificates))
    other_settings = WorkersSettings(None, **vars(make_certificates(tmp_path / "other")))
    with killed_at_end(scheduler_process(port, tmp_path, certificates)):
        worker = worker_process(
            address, tmp_path / "worker", certificates.environment, "--slots", "1", pretends="compile"
        )
        with killed_at_end(worker):
            with connect(address, right_settings, project) as client:
                assert Driver(client, project, Configuration(), wait_s=LIMIT_S).compile().worker
            with pytest.raises(EnvironmentFault, match="cannot be used"), connect(address, other_settings, project):
                pass
            with (
                pytest.raises(UsageError, match="needs a client certificate"),
                connect(address, WorkersSettings(), project),
            ):
                pass
            assert _listens_on_loopback_only(worker)


def _listens_on_loopback_only(process: Process) -> bool:
    """Whether the worker processes have listening TCP sockets, all of them on 127.0.0.1."""
    addresses = [
        connection.laddr.ip
        for pid in worker_pids(process)
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    return bool(addresses) and set(addresses) == {"127.0.0.1"}


def test_other_users_of_the_host_cannot_reach_local_workers(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # Dask would replace this value
    before = dict(os.environ)
    with connect("local:1", WorkersSettings(), project) as client:
        assert dict(os.environ) == before
        address = client.scheduler.address
        assert address.startswith("tls://127.0.0.1:")
        (worker,) = client.scheduler_info()["workers"]
        assert worker.startswith("tls://127.0.0.1:")
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=LIMIT_S) as caller:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            answer = b""  # a scheduler that accepts a connection sends its versions at once
            with contextlib.suppress(ssl.SSLError, ConnectionError), context.wrap_socket(caller) as connection:
                answer = connection.recv(1)
            assert answer == b"", "the scheduler answers without a certificate"


def test_a_worker_without_a_scheduler_ends_with_an_error(project: Path) -> None:
    code = (
        "import sys; from trtbuild.driver.farm import joining; joining.CONNECT_TIMEOUT_S = 1.0; "
        "from trtbuild.cli.main import main; main()"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, "worker", f"tcp://127.0.0.1:{free_port()}"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert process.returncode == 1
    assert "cannot be joined" in process.stderr


def test_a_scheduler_that_does_not_answer_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtbuild.driver.farm.joining.CONNECT_TIMEOUT_S", 0.2)
    process = WorkerProcess("w1", 1, ())
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts the connection
        address = SchedulerAddress("tcp", "127.0.0.1", silent.getsockname()[1])
        with pytest.raises(WorkersError, match=r"cannot be joined: TimeoutError\n"):
            asyncio.run(joining._serve(address, [process], "127.0.0.1", None, print))
