"""With `--offline`, commands that plan do not use remotes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.conftest import CommandLine
from tests.projects import copy_project


@dataclass
class Listener:
    """The port and the connections of a server that answers 404 to all requests."""

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
    copy_project("mlp", command_line.project)
    command_line.environment["TRTBUILD_REMOTES"] = f"team=rw:http://127.0.0.1:{server.port}/cache"
    return command_line


@pytest.mark.parametrize("command", [("plan",), ("status",), ("why", "net"), ("graph",)])
def test_offline_commands_do_not_use_a_remote(
    trtbuild: CommandLine, server: Listener, command: tuple[str, ...]
) -> None:
    assert trtbuild.run(*command, "--offline").returncode == 0
    assert trtbuild.run("--offline", *command).returncode == 0
    assert trtbuild.run(*command, environment={"TRTBUILD_REMOTES": ""}).returncode == 0
    assert server.connections == []


def test_without_the_option_remotes_are_used(trtbuild: CommandLine, server: Listener) -> None:
    document = trtbuild("plan")
    assert server.connections
    assert [report["name"] for report in document["remotes"]] == ["team"]
    assert trtbuild("plan", "--offline")["remotes"] == []


def test_errors_in_the_configuration_are_reported_offline_too(trtbuild: CommandLine) -> None:
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
