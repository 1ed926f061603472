"""A team cache on loopback that answers correctly, except requests of one kind."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from tests.store.transports.hostile import Server, Talk

HTML = b"<!doctype html><html><body><h1>Please log in</h1></body></html>" * 3

#: Called with the request and the stored bytes or None. Returns whether to keep the connection; None: answer correctly.
Fault = Callable[[Talk, "bytes | None"], object]


@dataclass
class HostileCache:
    """``GET``, ``HEAD`` and ``PUT`` below ``/cache/``, with `fault` for requests with this method and kind ("" is any)."""

    fault: Fault | None = None
    method: str = ""
    kind: str = ""
    entries: dict[tuple[str, str], bytes] = field(default_factory=dict)
    #: The number of requests to which the fault was applied, and the credentials of all requests.
    delivered: int = 0
    authorizations: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.server = Server(self._answer)

    def __enter__(self) -> HostileCache:
        self.server.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self.server.__exit__(*details)

    def url(self, user: str = "") -> str:
        return self.server.url.replace("http://", f"http://{user}@" if user else "http://")

    def _answer(self, talk: Talk) -> object:
        self.authorizations.add(talk.headers.get("authorization", ""))
        _, _, kind, name = talk.path.split("/", 3)
        stored = self.entries.get((kind, name))
        if self.fault is not None and self.method in ("", talk.method) and self.kind in ("", kind):
            self.delivered += 1
            kept = self.fault(talk, stored)
            if kept is not None:
                return kept
        if talk.method == "PUT":
            body = talk.body()
            if stored is not None:
                return talk.reply(409)
            self.entries[kind, name] = body
            return talk.reply(201)
        if stored is None:
            return talk.reply(404)
        if talk.method == "HEAD":
            return talk.reply(200, length=len(stored))
        return talk.reply(200, stored)


def status(code: int, **headers: str) -> Fault:
    def fault(talk: Talk, stored: bytes | None) -> object:
        talk.body()
        return talk.reply(code, b"no", **headers)

    return fault


def redirect(url: str) -> Fault:
    return lambda talk, stored: (talk.body(), talk.reply(302, Location=url + talk.path))[1]


def instead(change: Callable[[bytes], bytes]) -> Fault:
    """A fault that replaces the bytes of an existing entry."""
    return lambda talk, stored: talk.reply(200, change(stored)) if stored is not None else None


def _cut_off(talk: Talk, stored: bytes | None) -> object:
    talk.reply(200, (stored or b"x" * 100)[:50], length=len(stored or b"x" * 100) + 1000)
    return False


def _endless(talk: Talk, stored: bytes | None) -> object:
    talk.sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    with suppress(OSError):
        while not talk.stop.is_set():
            talk.sock.sendall(b"10000\r\n" + bytes(0x10000) + b"\r\n")
    return False


def _reset(talk: Talk, stored: bytes | None) -> object:
    if talk.method == "GET":
        with suppress(OSError):
            talk.reply(200, (stored or b"")[:10], length=100_000)
    talk.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    talk.sock.close()
    return False


def _drip(talk: Talk, stored: bytes | None) -> object:
    talk.reply(200, length=len(stored or b"x" * 100))
    for byte in stored or b"x" * 100:
        if talk.stop.wait(0.1):
            break
        talk.sock.sendall(bytes([byte]))
    return False


def _silence(talk: Talk, stored: bytes | None) -> object:
    talk.stop.wait()
    return False


def _garbage(talk: Talk, stored: bytes | None) -> object:
    talk.sock.sendall(b"\x16\x03\x01 this is no HTTP \xff\xfe" * 10 + b"\r\n\r\n")
    return False


def _headers(talk: Talk, stored: bytes | None) -> object:
    talk.sock.sendall(b"HTTP/1.1 200 OK\r\n")
    with suppress(OSError):
        for number in range(100_000):
            talk.sock.sendall(b"X-%d: %s\r\n" % (number, b"y" * 200))
    return False


def _false_success(talk: Talk, stored: bytes | None) -> object:
    """Report success, but send and store nothing."""
    talk.body()
    return talk.reply(200, length=0)


#: Faults for every kind of request.
FAULTS: Mapping[str, Fault] = {
    "a page of HTML": lambda talk, stored: (talk.body(), talk.reply(200, HTML, Content_Type="text/html"))[1],
    "a reset": _reset,
    "a drip": _drip,
    "silence": _silence,
    "garbage": _garbage,
    "headers without end": _headers,
    "a false success": _false_success,
    "asked to come back soon": status(429, Retry_After="0"),
    "asked to come back tomorrow": status(503, Retry_After="86400"),
    "a redirect to itself": lambda talk, stored: (talk.body(), talk.reply(302, Location=talk.path))[1],
    **{
        str(code): status(code)
        for code in (400, 401, 403, 404, 405, 408, 409, 410, 412, 413, 418, 429, 500, 501, 502, 503, 504, 507)
    },
}

#: Further faults for GET requests.
READ_FAULTS: Mapping[str, Fault] = {
    "cut off": _cut_off,
    "without end": _endless,
    "one bit": instead(lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    "a byte short": instead(lambda data: data[:-1]),
    "a byte long": instead(lambda data: data + b"\0"),
    "nothing": instead(lambda data: b""),
    "zeros": instead(lambda data: bytes(len(data))),
    "100 MB": instead(lambda data: bytes(100_000_000)),
}
