"""Ctrl-C during an upload ends the build at once. A message names the command that sends the rest."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from tests.conftest import CommandLine
from tests.projects import copy_project
from tests.warm.servers import servers


class ServerWithHangingUploads:
    """A cache server without entries. It answers all requests at once, except uploads, which it never answers."""

    def __init__(self) -> None:
        self.uploads = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            while request := lines.readline():
                while lines.readline().strip():
                    pass  # a header
                if request.startswith(b"PUT"):
                    self.uploads += 1
                    time.sleep(60)
                    return
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    def close(self) -> None:
        self._listener.close()


def test_an_interrupt_does_not_wait_for_uploads(command_line: CommandLine) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        pytest.skip("children would ignore Ctrl-C, too")
    server = ServerWithHangingUploads()
    copy_project("mlp", command_line.project)
    environment = {
        "TRTBUILD_CACHE_DIR": str(command_line.cache),
        "TRTBUILD_REMOTES": f"team=rw:http://127.0.0.1:{server.port}",
        "TRTBUILD_REMOTE_TEAM_PATIENCE_S": "60",
    }
    build = subprocess.Popen(
        [sys.executable, *servers.python_arguments("trtbuild.cli.main", os.environ), "build"],
        cwd=command_line.project,
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        index = command_line.project / "dist" / "net" / "index.json"
        deadline = time.monotonic() + 120
        while not (index.exists() and server.uploads):
            assert build.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        build.send_signal(signal.SIGINT)
        _, err = build.communicate(timeout=30)
    finally:
        build.kill()
        server.close()
    assert build.returncode == 130
    assert "send them with trtbuild cache push" in err
