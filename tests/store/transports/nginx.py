"""Run nginx with docs/team-cache/nginx.conf in a child process. Only the paths, port and log interval are changed."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.programs import program

DOCS = Path(__file__).parents[3] / "docs"

#: The main configuration file. It includes the documented file, as Debian's /etc/nginx/nginx.conf does.
_MAIN_CONFIGURATION = """
{user}
daemon off;
worker_processes 2;
pid {prefix}/nginx.pid;
error_log {prefix}/logs/error.log;
events {{ worker_connections 512; }}
http {{
    proxy_temp_path {prefix}/temp/proxy;
    fastcgi_temp_path {prefix}/temp/fastcgi;
    scgi_temp_path {prefix}/temp/scgi;
    uwsgi_temp_path {prefix}/temp/uwsgi;
    include {prefix}/trtbuild.conf;
}}
"""


class Nginx:
    """A running server. `root` contains its entries. Every request needs the login of ``reader`` or ``writer``."""

    def __init__(self, prefix: Path, port: int, passwords: dict[str, str]) -> None:
        self.prefix, self.port, self.passwords = prefix, port, passwords
        self.root = prefix / "srv"

    @property
    def url(self) -> str:
        """The URL without credentials."""
        return f"http://127.0.0.1:{self.port}"

    def url_of(self, user: str) -> str:
        """The URL with the credentials of ``reader`` or ``writer``."""
        return f"http://{user}:{self.passwords[user]}@127.0.0.1:{self.port}"

    def log(self) -> list[str]:
        """The lines of the access log. Waits first, because nginx writes them with a delay of at most 50 ms."""
        time.sleep(0.1)
        return (self.prefix / "logs" / "trtbuild.log").read_text().splitlines()

    def empty(self) -> None:
        """Remove all entries."""
        for kind in ("ac", "cas"):
            shutil.rmtree(self.root / kind, ignore_errors=True)


def configuration(prefix: Path, port: int) -> str:
    """docs/team-cache/nginx.conf with the port, the directories and the log interval of a test."""
    text = (DOCS / "team-cache" / "nginx.conf").read_text("utf-8")
    for documented, replacement in {
        "127.0.0.1:8080": f"127.0.0.1:{port}",
        "/srv/trtbuild": str(prefix / "srv"),
        "/var/log/nginx/": f"{prefix}/logs/",
        "/etc/nginx/trtbuild.": f"{prefix}/trtbuild.",
        "flush=5s": "flush=50ms",
    }.items():
        assert documented in text, f"the documented configuration does not contain {documented}"
        text = text.replace(documented, replacement)
    return text


def _add_users(prefix: Path) -> dict[str, str]:
    """Run the documented commands in a shell. Returns the passwords that they print."""
    page = (DOCS / "team-cache.md").read_text("utf-8")
    (commands,) = re.findall(r"```sh\n(# the logins\n.*?)```", page, re.DOTALL)
    assert "/etc/nginx/" in commands
    process = subprocess.run(
        ["sh", "-euc", commands.replace("/etc/nginx/", f"{prefix}/")],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return dict(line.split() for line in process.stdout.splitlines())


@contextmanager
def running(prefix: Path) -> Iterator[Nginx]:
    """Start nginx on a free port of loopback, in the directory `prefix`, as the current user."""
    executable = program("nginx")
    program("openssl")  # for the logins
    for name in ("srv/tmp", "logs", "temp"):
        (prefix / name).mkdir(parents=True)
    passwords = _add_users(prefix)
    process = None
    try:
        for _ in range(5):  # another process may take the port before nginx does
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            (prefix / "trtbuild.conf").write_text(configuration(prefix, port))
            user = "user root;" if os.geteuid() == 0 else ""
            (prefix / "nginx.conf").write_text(_MAIN_CONFIGURATION.format(prefix=prefix, user=user))
            command = [executable, "-p", str(prefix), "-e", f"{prefix}/logs/error.log", "-c", f"{prefix}/nginx.conf"]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
            if _answers(process, prefix / "nginx.pid", port):
                break
        else:
            raise AssertionError((prefix / "logs" / "error.log").read_text())
        yield Nginx(prefix, port, passwords)
    finally:
        if process is not None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=5)
            process.kill()


def _answers(process: subprocess.Popen[bytes], pid_file: Path, port: int) -> bool:
    """Wait until the server answers. Returns False if it ends without an answer, or does not answer within 20 s."""
    end = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < end:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            if b"nginx" in connection.recv(4096) and pid_file.exists():  # so the port belongs to this nginx
                return True
        time.sleep(0.02)
    return False
