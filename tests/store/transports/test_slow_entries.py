"""Entries that a remote sends too slowly. Every test checks that the entry was sent, and how slowly."""

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
from trtbuild.store.transports.patience import Patient
from trtbuild.store.transports.settings import RemoteSettings

SIZE = 15_000_000
LIMIT = 16 << 20


class Dripping:
    """Answers with a body of `SIZE` bytes at 12 kB per second, which is too fast for the limit on silence."""

    def __init__(self) -> None:
        self.sent = 0

    def __call__(self, request: Request) -> None:
        request.reply(200, length=SIZE)
        while not request.stop.wait(0.05):
            request.sock.sendall(b" " * 600)
            self.sent += 600


def test_a_plan_waits_seconds_for_a_slow_remote_and_reports_it(command_line: CommandLine) -> None:
    copy_project("two_models", command_line.project)
    dripping = Dripping()
    with Server(dripping) as there:
        environment = {"TRTBUILD_REMOTES": f"team=r:{there.url}", "TRTBUILD_REMOTE_TEAM_PATIENCE_S": "1"}
        document = command_line("plan", environment=environment)
        told = command_line.run("plan", environment=environment)
    (team,) = document["remotes"]
    assert "an entry was not there after 2.5 s" in team["given_up"]
    assert (team["failures"], team["troubles"][0]["kind"]) == (1, "down")
    assert len(there.requests) == 2, "one entry of each plan"
    assert all("/ac/" in request.path for request in there.requests)
    assert 2 * 16 << 10 < dripping.sent < 1_000_000, "it sent without a pause, and the client gave up"
    assert "an entry was not there after 2.5 s" in told.stdout + told.stderr
    assert "raise patience_s" in team["troubles"][0]["hint"]


def test_the_time_limit_includes_redirects(tmp_path: Path) -> None:
    """Neither a redirect nor a reused connection starts the time again."""
    dripping = Dripping()

    def handler(request: Request) -> object:
        if request.number == 1:
            return request.reply(200, b"first")
        if request.path.startswith("/moved"):
            return dripping(request)
        request.stop.wait(0.5)
        return request.reply(307, Location=f"/moved{request.path}")

    with Server(handler) as there:
        team = HttpTransport(RemoteSettings("team", there.url, patience_s=0.8), {"HOME": "/nonexistent"})
        assert team.get("ac", NAME, LIMIT, timed=True) == b"first"
        with pytest.raises(RemoteDown, match="an entry was not there after 2 s") as caught:
            team.get("ac", NAME, LIMIT, timed=True)
        assert there.connections == 1
    assert not caught.value.may_pass
    assert 0 < dripping.sent < SIZE


def test_a_limit_of_one_request_is_not_that_of_the_next(tmp_path: Path) -> None:
    def steady(request: Request) -> bool:
        request.reply(200, length=30_000)
        for _ in range(20):
            request.stop.wait(0.05)
            request.sock.sendall(b"x" * 1500)
        return True

    with Server(steady) as there:
        team = HttpTransport(RemoteSettings("team", there.url, patience_s=0.3), {"HOME": "/nonexistent"})
        assert team.get("cas", NAME, LIMIT) == b"x" * 30_000, "a blob may take its time"
        with pytest.raises(RemoteDown, match="an entry was not there"):
            team.get("ac", NAME, LIMIT, timed=True)
        assert team.get("cas", NAME, LIMIT) == b"x" * 30_000


def test_an_object_that_drips(server: Callable[..., ObjectServer]) -> None:  # noqa: F811
    there = server(answer("200 OK", b"", length=SIZE), drip=b"x" * 1000)  # 20 kB a second
    store = ObjectTransport(RemoteSettings("team", "s3://cache", patience_s=0.4))
    with pytest.raises(RemoteDown, match="an entry was not there after 1 s") as caught:
        store.get("ac", NAME, LIMIT, timed=True)
    assert not caught.value.may_pass
    assert len(there.requests) == 1


_READING = """
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


def test_a_file_of_a_shared_directory_that_drips(tmp_path: Path) -> None:
    """The system calls that read it are delayed, as on a slow network share."""
    entry = tmp_path / "share" / "ac" / NAME[:2] / NAME
    entry.parent.mkdir(parents=True)
    entry.write_bytes(b" " * (4 << 20))
    log = tmp_path / "calls"
    tracing = [program("strace"), "-f", "-y", "-s", "0", "-o", str(log), "-P", str(entry), "-e", "trace=read"]
    for slowly in (False, True):
        command = [*tracing, *(["-e", "inject=read:delay_exit=100000"] if slowly else [])]
        command += [sys.executable, "-c", _READING, f"file://{tmp_path}/share", NAME]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        reads = [line for line in log.read_text().splitlines() if re.search(r"\bread\(", line)]
        if slowly:
            assert all("(DELAYED)" in line for line in reads)
            assert 5 <= len(reads) < 20, "a part of it was read"
            assert done.stdout == f"file://{tmp_path}/share: an entry was not there after 1 s\n", done.stderr
        else:
            assert done.stdout == f"{4 << 20}\n", done.stderr


def test_many_entries_that_each_come_in_time_are_too_much_together() -> None:
    script = Scripted(*[b"entry"] * 100, takes_s=2.0)
    team = Patient(script, 4.0, clock=script.clock, sleep=script.sleep)
    while team.usable("read"):
        assert team.get("ac", NAME, LIMIT, timed=True) == b"entry"
    assert script.now == 28.0, "20 s beyond half a second for each of 14"
    report = team.report()
    assert report.failures == 1
    assert "builds waited 21 s for its entries" in str(report.warnings)
    assert script.closed == 1


@pytest.mark.parametrize(
    ("size", "takes_s", "timed"),
    [(5, 0.5, True), (256 << 10, 4.0, True), (5, 2.0, False)],
    ids=["far away", "a slow line that moves", "nobody waits"],
)
def test_entries_that_hold_up_nothing(size: int, takes_s: float, timed: bool) -> None:
    script = Scripted(*[b"x" * size] * 100, takes_s=takes_s)
    team = Patient(script, 4.0, clock=script.clock, sleep=script.sleep)
    for _ in range(100):
        assert team.get("ac", NAME, LIMIT, timed=timed) is not None
    assert team.usable("read")
    assert script.now == 100 * takes_s
