"""`--offline`: no remote is asked, by any command that looks steps up."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.conftest import CommandLine

MANIFEST = """\
version: 1
targets: {ada: {sm: 89}}
profiles: {rows: {x: {min: [1, 8], opt: [4, 8], max: [8, 8]}}}
models:
  net: {source: {python: "net:build"}, inputs: {x: {}}, profiles: [rows], targets: [ada]}
"""


@dataclass
class Listener:
    """A server that answers 404 to everything, and counts who has connected."""

    port: int
    connections: list[object] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Listener]:
    sock = socket.create_server(("127.0.0.1", 0))
    listener = Listener(sock.getsockname()[1])

    def serve() -> None:
        while True:
            try:
                connection, address = sock.accept()
            except OSError:
                return
            listener.connections.append(address)
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    threading.Thread(target=serve, daemon=True).start()
    yield listener
    sock.close()


@pytest.fixture
def trtbuild(command_line: CommandLine, server: Listener) -> CommandLine:
    (command_line.project / "trtbuild.yaml").write_text(MANIFEST)
    (command_line.project / "net.py").write_text("def build(): ...\n")
    command_line.environment["TRTBUILD_REMOTES"] = f"team=rw:http://127.0.0.1:{server.port}/cache"
    return command_line


@pytest.mark.parametrize("command", [("plan",), ("status",), ("why", "net"), ("graph",)])
def test_no_remote_is_asked(trtbuild: CommandLine, server: Listener, command: tuple[str, ...]) -> None:
    assert trtbuild.run(*command, "--offline").returncode == 0
    assert trtbuild.run("--offline", *command).returncode == 0
    assert trtbuild.run(*command, environment={"TRTBUILD_REMOTES": ""}).returncode == 0
    assert server.connections == []


def test_without_it_remotes_are_asked(trtbuild: CommandLine, server: Listener) -> None:
    document = trtbuild("plan")
    assert server.connections
    assert [report["name"] for report in document["remotes"]] == ["team"]
    assert trtbuild("plan", "--offline")["remotes"] == []


def test_a_wrong_configuration_is_an_error_offline_too(trtbuild: CommandLine) -> None:
    wrong = {"TRTBUILD_REMOTES": "team=rw:nowhere"}
    for offline in ((), ("--offline",)):
        document = trtbuild("plan", *offline, environment=wrong, expect=2)
        (error,) = document["errors"]
        assert error["type"] == "ConfigurationError"
        assert error["text"].startswith("TRTBUILD_REMOTES: ")
        assert error["hint"]
    result = trtbuild.run("plan", environment={"TRTBUILD_REMOTES": "team=rw:nowhere", "TRTBUILD_DOMAIN": "a b"})
    assert result.returncode == 2
    assert result.stderr.count("error: ") == 2
