"""Fixtures of the store's tests: values, stores and their entries, child processes, an S3 server, and a public folder."""

from __future__ import annotations

import os
import random
import secrets
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.store.local.local import LocalStore

MIB = 1 << 20


@pytest.fixture
def payload() -> Callable[[int, int], bytes]:
    """A function that returns pseudorandom bytes, by seed and size."""
    return lambda seed, size: random.Random(seed).randbytes(size)


@pytest.fixture
def record_of() -> Callable[..., Record]:
    """A function that creates a record. `number` is the only part of its recipe, and `who` is its provenance."""

    def make(number: int, *, stage: str = "engine", who: str = "me", **outputs: Output) -> Record:
        return Record(Recipe(stage, 1, (("number", number),)), outputs, {"who": who})

    return make


@pytest.fixture
def local(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def entry_path() -> Callable[[LocalStore, str, str], Path]:
    """A function that returns the path of an entry, by store, kind (``ac`` or ``cas``) and name."""
    return lambda store, kind, name: store.root / kind / name[:2] / name


@pytest.fixture
def age() -> Callable[[LocalStore, float], None]:
    """A function that moves the times of all entries of a store into the past."""

    def shift(store: LocalStore, seconds: float) -> None:
        for path in [*store.root.glob("cas/*/*"), *store.root.glob("ac/*/*")]:
            earlier = path.stat().st_mtime_ns - int(seconds * 1e9)
            os.utime(path, ns=(earlier, earlier))

    return shift


class Child:
    """A Python process that runs some code, and exchanges lines with the test through pipes."""

    def __init__(self, code: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read_line(self) -> str:
        """Wait for the next line that the process writes."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def send(self, text: str = "go") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def kill(self) -> list[str]:
        """Send SIGKILL; return the written lines that the test has not read."""
        self.process.kill()
        # Unlike `communicate`, `read` also returns the lines that `read_line` has left in the buffer of `stdout`.
        assert self.process.stdout is not None
        rest = self.process.stdout.read()
        self.process.wait()
        return rest.splitlines()

    def finish(self) -> str:
        """Wait until the process ends without an error; return the output that is not in the buffer of `stdout`."""
        output, _ = self.process.communicate(timeout=30)
        assert self.process.returncode == 0
        return output


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """A function that starts a `Child`. At the end of the test, all children are killed."""
    started: list[Child] = []

    def start(code: str, *arguments: object) -> Child:
        started.append(Child(code, *arguments))
        return started[-1]

    yield start
    for child in started:
        if child.process.poll() is None:
            child.process.kill()
        child.process.communicate()


# The server handles one request at a time, because moto checks for an object and then writes it. A real service does both
# in one step.
OBJECT_SERVER = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
run_simple("127.0.0.1", int(sys.argv[1]), DomainDispatcherApplication(create_backend_app), threaded=False)
"""


@pytest.fixture(scope="session")
def object_server() -> Iterator[str]:
    """Run moto's S3 server on loopback, with the bucket ``cache``, and return the endpoint of the server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-c", OBJECT_SERVER, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    endpoint, end = f"http://127.0.0.1:{port}", time.monotonic() + 60
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy for loopback
    try:
        while True:
            try:
                direct.open(urllib.request.Request(f"{endpoint}/cache", method="PUT"), timeout=30).read()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < end, "moto's server did not start"
                time.sleep(0.05)
        yield endpoint
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def s3(object_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty prefix of the bucket. Sets credentials in the environment."""
    for name, value in {
        "AWS_ENDPOINT_URL": object_server,
        "AWS_ACCESS_KEY_ID": "an-id",
        "AWS_SECRET_ACCESS_KEY": "a-secret",
        "AWS_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    return f"s3://cache/{secrets.token_hex(8)}"


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that every user can read. pytest's own folders are private, and pytest makes them private at each start."""
    with tempfile.TemporaryDirectory(prefix="trtbuild-users-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
