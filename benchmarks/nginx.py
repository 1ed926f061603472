"""Run nginx on a free loopback port, with docs/team-cache/nginx.conf. Only paths, port and log interval are changed.

Numbers of transferred bytes come from the access log, so that the benchmarks do not depend on trtbuild's own counts.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

#: The configuration that docs/team-cache.md describes.
_CONFIGURATION_FILE = Path(__file__).parents[1] / "docs" / "team-cache" / "nginx.conf"

_USER, _PASSWORD = "writer", "of-the-benchmark"

_MAIN_CONFIGURATION = """\
{user}
daemon off;
worker_processes 2;
pid {prefix}/nginx.pid;
error_log {prefix}/error.log;
events {{ worker_connections 512; }}
http {{
    proxy_temp_path {prefix}/temp-proxy;
    fastcgi_temp_path {prefix}/temp-fastcgi;
    scgi_temp_path {prefix}/temp-scgi;
    uwsgi_temp_path {prefix}/temp-uwsgi;
    include {prefix}/trtbuild.conf;
}}
"""


@dataclass(frozen=True)
class LoggedRequest:
    """A request in the access log. `sent` is the length of the answer's body, `received` that of the whole request."""

    method: str
    status: int
    received: int
    sent: int


@dataclass(frozen=True)
class Nginx:
    """A running server. The folder `prefix` has its configuration and logs, and `root` has the served files."""

    prefix: Path
    port: int

    @property
    def root(self) -> Path:
        return self.prefix / "srv"

    @property
    def url(self) -> str:
        """The URL of the server, with the credentials."""
        return f"http://{_USER}:{_PASSWORD}@127.0.0.1:{self.port}"

    def entry_url(self, kind: str, name: str) -> str:
        """Return the URL of one entry (a file of the store), with the credentials."""
        return f"{self.url}/{kind}/{name}"

    def requests(self) -> list[LoggedRequest]:
        time.sleep(0.3)  # nginx writes its lines up to 50 ms late
        logged = []
        for line in (self.prefix / "trtbuild.log").read_text().splitlines():
            method, _, status, received, sent, _ = line.rsplit("] ", 1)[1].split()
            logged.append(LoggedRequest(method, int(status), int(received), int(sent)))
        return logged


@contextmanager
def run_nginx(prefix: Path) -> Iterator[Nginx]:
    """Start nginx in the empty directory `prefix`. Raises FileNotFoundError if nginx is not installed.

    Raises RuntimeError if nginx does not start.
    """
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise FileNotFoundError("nginx: apt-get install nginx-light")
    (prefix / "srv" / "tmp").mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    _write_configuration(prefix, port)
    process = subprocess.Popen(
        [program, "-p", str(prefix), "-e", f"{prefix}/error.log", "-c", f"{prefix}/nginx.conf"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        _wait_until_ready(process, port)
        yield Nginx(prefix, port)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=5)
        process.kill()


def _write_configuration(prefix: Path, port: int) -> None:
    digest = base64.b64encode(hashlib.sha1(_PASSWORD.encode()).digest()).decode()
    for name in ("readers", "writers"):
        (prefix / f"trtbuild.{name}").write_text(f"{_USER}:{{SHA}}{digest}\n")
    text = _CONFIGURATION_FILE.read_text("utf-8")
    for documented, replacement in {
        "127.0.0.1:8080": f"127.0.0.1:{port}",
        "/srv/trtbuild": str(prefix / "srv"),
        "/var/log/nginx/": f"{prefix}/",
        "/etc/nginx/trtbuild.": f"{prefix}/trtbuild.",
        "flush=5s": "flush=50ms",
    }.items():
        if documented not in text:
            raise ValueError(f"{_CONFIGURATION_FILE} does not contain {documented}")
        text = text.replace(documented, replacement)
    (prefix / "trtbuild.conf").write_text(text)
    user = "user root;" if os.geteuid() == 0 else ""
    (prefix / "nginx.conf").write_text(_MAIN_CONFIGURATION.format(prefix=prefix, user=user))


def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < end:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
            return
        time.sleep(0.02)
    process.kill()
    raise RuntimeError(f"nginx did not start: {process.communicate()[1].decode(errors='replace')}")
