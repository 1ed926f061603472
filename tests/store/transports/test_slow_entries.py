"""Entries that a remote sends too slowly."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import CommandLine
from tests.programs import program
from tests.projects import copy_project
from tests.store.transports.scripted_server import Request, Server
from tests.store.transports.test_objects import Server as ObjectServer
from tests.store.transports.test_objects import answer, server  # noqa: F401 - a fixture
from tests.store.transports.test_patience import NAME, Scripted
from trtbuild.errors import RemoteDown
from trtbuild.store.transports.http import HttpTransport
from trtbuild.store.transports.objects import ObjectTransport
from trtbuild.store.transports.patience import PatientTransport
from trtbuild.store.transports.settings import RemoteSettings

SIZE = 15_000_000
LIMIT = 16 << 20


class SlowBody:
    """Sends a body of `SIZE` bytes at 12 kB per second. This rate does not count as silence."""

    def __init__(self) -> None:
        self.sent = 0

    def __call__(self, request: Request) -> None:
        request.reply(200, length=SIZE)
        while not request.stop.wait(0.05):
            request.sock.sendall(b" " * 600)
            self.sent += 600


def test_a_plan_gives_up_a_slow_remote_and_reports_it(command_line: CommandLine) -> None:
    copy_project("two_models", command_line.project)
    slow_body = SlowBody()
    with Server(slow_body) as remote:
        environment = {"TRTBUILD_REMOTES": f"team=r:{remote.url}", "TRTBUILD_REMOTE_TEAM_PATIENCE_S": "1"}
        document = command_line("plan", environment=environment)
        process = command_line.run("plan", environment=environment)
    (team,) = document["remotes"]
    assert "an entry did not arrive within 2.5 s" in team["given_up"]
    assert (team["failures"], team["troubles"][0]["kind"]) == (1, "down")
    assert len(remote.requests) == 2, "each plan requested one entry"
    assert all("/ac/" in request.path for request in remote.requests)
    # Two plans × 2.5 s × 12 kB a second are 60 kB.
    assert 32 << 10 < slow_body.sent < 1_000_000, "it sent without a pause, and the client gave up"
    assert "an entry did not arrive within 2.5 s" in process.stdout + process.stderr
    assert "raise patience_s" in team["troubles"][0]["hint"]


def test_the_time_limit_includes_redirects() -> None:
    """Neither a redirect nor a reused connection restarts the time limit."""
    slow_body = SlowBody()

    def handler(request: Request) -> object:
        if request.number == 1:
            return request.reply(200, b"first")
        if request.path.startswith("/moved"):
            return slow_body(request)
        request.stop.wait(0.5)
        return request.reply(307, Location=f"/moved{request.path}")

    with Server(handler) as remote:
        team = HttpTransport(RemoteSettings("team", remote.url, patience_s=0.8), {"HOME": "/nonexistent"})
        assert team.get("ac", NAME, LIMIT, timed=True) == b"first"
        with pytest.raises(RemoteDown, match="an entry did not arrive within 2 s") as caught:
            team.get("ac", NAME, LIMIT, timed=True)
        assert remote.connections == 1
    assert not caught.value.is_transient
    assert 0 < slow_body.sent < SIZE


def test_the_time_limit_of_one_request_does_not_affect_the_next() -> None:
    def steady(request: Request) -> bool:
        request.reply(200, length=30_000)
        for _ in range(20):
            request.stop.wait(0.05)
            request.sock.sendall(b"x" * 1500)
        return True

    with Server(steady) as remote:
        team = HttpTransport(RemoteSettings("team", remote.url, patience_s=0.3), {"HOME": "/nonexistent"})
        assert team.get("cas", NAME, LIMIT) == b"x" * 30_000, "a blob has no time limit"
        with pytest.raises(RemoteDown, match="an entry did not arrive"):
            team.get("ac", NAME, LIMIT, timed=True)
        assert team.get("cas", NAME, LIMIT) == b"x" * 30_000


def test_gives_up_a_slow_object(server: Callable[..., ObjectServer]) -> None:  # noqa: F811
    service = server(answer("200 OK", b"", length=SIZE), drip=b"x" * 1000)  # 20 kB a second
    store = ObjectTransport(RemoteSettings("team", "s3://cache", patience_s=0.4))
    with pytest.raises(RemoteDown, match="an entry did not arrive within 1 s") as caught:
        store.get("ac", NAME, LIMIT, timed=True)
    assert not caught.value.is_transient
    assert len(service.requests) == 1


_READER_PROGRAM = """
import sys
from trtbuild.errors import RemoteDown
from trtbuild.store.transports.directory import DirectoryTransport
from trtbuild.store.transports.settings import RemoteSettings

share = DirectoryTransport(RemoteSettings("team", sys.argv[1], patience_s=0.4))
try:
    print(len(share.get("ac", sys.argv[2], 16 << 20, timed=True)))
except RemoteDown as error:
    print(error.text)
"""


def test_gives_up_a_slow_file_of_a_shared_directory(tmp_path: Path) -> None:
    """strace delays the system calls that read the file, as on a slow network share."""
    entry = tmp_path / "share" / "ac" / NAME[:2] / NAME
    entry.parent.mkdir(parents=True)
    entry.write_bytes(b" " * (4 << 20))
    log = tmp_path / "calls"
    tracing = [program("strace"), "-f", "-y", "-s", "0", "-o", str(log), "-P", str(entry), "-e", "trace=read"]
    for delayed in (False, True):
        command = [*tracing, *(["-e", "inject=read:delay_exit=100000"] if delayed else [])]
        command += [sys.executable, "-c", _READER_PROGRAM, f"file://{tmp_path}/share", NAME]
        process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        calls = log.read_text()
        reads = len(re.findall(r"\bread\(", calls))
        if delayed:
            assert calls.count("(DELAYED)") >= reads - 1, "all reads were delayed; the last read may not have ended"
            assert 5 <= reads < 20, "a part of the file was read"
            expected = f"file://{tmp_path}/share: an entry did not arrive within 1 s\n"
            assert process.stdout == expected, process.stderr
        else:
            assert process.stdout == f"{4 << 20}\n", process.stderr


def test_gives_up_a_remote_after_many_slow_entries() -> None:
    script = Scripted(*[b"entry"] * 100, takes_s=2.0)
    team = PatientTransport(script, patience_s=4.0, clock=script.clock, sleep=script.sleep)
    while team.is_usable("read"):
        assert team.get("ac", NAME, LIMIT, timed=True) == b"entry"
    assert script.now == 14 * 2.0, "each call has a delay of 1.5 s, and 14 delays exceed the limit of 20 s"
    report = team.report()
    assert report.failures == 1
    assert "builds waited 21 s for its entries" in str(report.warnings)
    assert script.close_calls == 1


@pytest.mark.parametrize(
    ("size", "takes_s", "timed"),
    [(5, 0.5, True), (256 << 10, 4.0, True), (5, 2.0, False)],
    ids=["short delays", "a slow but steady line", "no time limit"],
)
def test_does_not_give_up_a_remote_without_slow_entries(size: int, takes_s: float, timed: bool) -> None:
    script = Scripted(*[b"x" * size] * 100, takes_s=takes_s)
    team = PatientTransport(script, patience_s=4.0, clock=script.clock, sleep=script.sleep)
    for _ in range(100):
        assert team.get("ac", NAME, LIMIT, timed=timed) is not None
    assert team.is_usable("read")
    assert script.now == 100 * takes_s
