"""Measure the seconds that a dead remote (a cache server that fails) adds to a build with an empty cache.

There are five dead remotes: a port that refuses connections, a server that never answers, a server that sends a byte a
second, an unknown host name, and a host name whose lookup hangs. All traffic stays on the loopback: the servers listen
there, and for the two host names a stub replaces `socket.getaddrinfo` in the build's process. The servers count connections
and the stub counts lookups, which proves that the build tried the remote. The refused port has no count.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import projects
from benchmarks.figure import Check, Measurement, Row, Value
from benchmarks.measure import run
from benchmarks.session import Session, delete_build, run_counts

#: The head of an answer whose body is never sent completely.
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"

_STUB = '''\
"""A resolver of the benchmark: it knows no name under .invalid, or never answers."""

import os
import socket
import time

_real = socket.getaddrinfo


def getaddrinfo(host, *arguments, **settings):
    if not str(host).endswith(".invalid"):
        return _real(host, *arguments, **settings)
    with open(os.environ["BENCHMARK_NAMES"], "a") as asked:
        asked.write(f"{host}\\n")
    if str(host).startswith("hangs"):
        time.sleep(300)
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


socket.getaddrinfo = getaddrinfo
'''


@dataclass
class _Fault:
    """A dead remote at `url`. `environment` has variables for the build. `encounters` has an entry for each connection."""

    url: str
    environment: Mapping[str, str] = field(default_factory=dict)
    encounters: list[str] = field(default_factory=list)


def rows(session: Session) -> Iterator[Row]:
    project = projects.write_many(session.folder("dead"), model_count=1, target_count=1)
    session.say("  building one small model from nothing, without a remote and with dead ones")
    _build(session, project, {})  # a warm-up: the first imports read files from the disk
    alone_s, _ = _build(session, project, {})
    for name, fault in _FAULTS.items():
        with fault(session) as remote:
            environment = {**remote.environment, "TRTBUILD_REMOTES": f"team=rw:{remote.url}"}
            duration_s, document = _build(session, project, environment)
            lookups = session.work / "names"
            encounters = remote.encounters + (lookups.read_text().split() if lookups.exists() else [])
        yield Measurement(f"dead remote, {name}", Value("additional time", max(duration_s - alone_s, 0.0)), bound=5.0)
        built = run_counts(document).get("engine") == 1 and document["ok"]
        warnings = [text for text in document["warnings"] if "team" in str(text)]
        found = f"built: {built}, met {len(encounters)} times, {len(warnings)} warnings"
        yield Check(f"dead remote, {name}: built, and warned", built and bool(warnings), found)
        if not encounters and name != "refused port":
            raise RuntimeError(f"{name}: the build did not try the remote")


def _build(session: Session, project: Path, environment: Mapping[str, str]) -> tuple[float, Any]:
    delete_build(project, cache=True)
    build = run([session.trtbuild, "build", "--json"], project, environment={**session.environment(), **environment})
    return build.wall_s, json.loads(build.stdout)


@contextmanager
def _refusing_port(session: Session) -> Iterator[_Fault]:
    with socket.socket() as reserved:  # a bound port that does not listen: no other process gets it
        reserved.bind(("127.0.0.1", 0))
        yield _Fault(f"http://127.0.0.1:{reserved.getsockname()[1]}")


@contextmanager
def _listener(*, sends_bytes: bool) -> Iterator[_Fault]:
    stopped = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as connections:
        fault = _Fault(f"http://127.0.0.1:{server.getsockname()[1]}")

        def drip(connection: socket.socket) -> None:
            try:
                connection.recv(1)
                connection.sendall(_ANSWER)
                while not stopped.wait(1):
                    connection.sendall(b"{")
            except OSError:
                return  # the client has closed the connection

        def accept() -> None:
            while not stopped.is_set():
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connections.enter_context(connection)
                fault.encounters.append("connection")
                if sends_bytes:
                    threading.Thread(target=drip, args=(connection,), daemon=True).start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield fault
        finally:
            stopped.set()
            server.shutdown(socket.SHUT_RDWR)  # ends `server.accept`
            accepting.join(5)


@contextmanager
def _resolver(session: Session, name: str) -> Iterator[_Fault]:
    folder = session.folder("resolver")
    (folder / "sitecustomize.py").write_text(_STUB)
    lookups = session.work / "names"  # the stub appends each name under .invalid to this file
    lookups.unlink(missing_ok=True)
    try:
        yield _Fault(f"http://{name}.invalid", {"PYTHONPATH": str(folder), "BENCHMARK_NAMES": str(lookups)})
    finally:
        lookups.unlink(missing_ok=True)


def _silent_listener(session: Session) -> AbstractContextManager[_Fault]:
    return _listener(sends_bytes=False)


def _slow_listener(session: Session) -> AbstractContextManager[_Fault]:
    return _listener(sends_bytes=True)


def _unknown_host(session: Session) -> AbstractContextManager[_Fault]:
    return _resolver(session, "nobody")


def _hanging_resolver(session: Session) -> AbstractContextManager[_Fault]:
    return _resolver(session, "hangs")


_FAULTS = {
    "refused port": _refusing_port,
    "a listener that never answers": _silent_listener,
    "a byte a second": _slow_listener,
    "an unknown host name": _unknown_host,
    "a resolver that hangs": _hanging_resolver,
}
