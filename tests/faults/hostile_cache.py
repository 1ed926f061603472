"""A team cache on loopback. It answers requests correctly, except those for which a test chooses a fault."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from tests.store.transports.scripted_server import Request, Server

HTML = b"<!doctype html><html><body><h1>Please log in</h1></body></html>" * 3

#: A function that answers a request, given the stored bytes (None for a missing entry). It returns whether the
#: server keeps the connection open. None means that the function has not answered. Then the server answers correctly.
Fault = Callable[[Request, "bytes | None"], object]


@dataclass
class HostileCache:
    """A server of ``/cache/`` for GET, HEAD and PUT.

    `fault` answers the requests with `method` for entries of `kind`, which is ``ac`` or ``cas``. An empty string means any
    method or kind.
    """

    fault: Fault | None = None
    method: str = ""
    kind: str = ""
    entries: dict[tuple[str, str], bytes] = field(default_factory=dict)
    #: The number of requests for which `fault` was called, and the credentials of all requests.
    delivered: int = 0
    authorizations: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.server = Server(self._handle)

    def __enter__(self) -> HostileCache:
        self.server.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self.server.__exit__(*details)

    def url(self, user: str = "") -> str:
        return self.server.url.replace("http://", f"http://{user}@" if user else "http://")

    def _handle(self, request: Request) -> object:
        self.authorizations.add(request.headers.get("authorization", ""))
        _, _, kind, name = request.path.split("/", 3)
        stored = self.entries.get((kind, name))
        if self.fault is not None and self.method in ("", request.method) and self.kind in ("", kind):
            self.delivered += 1
            reply = self.fault(request, stored)
            if reply is not None:
                return reply
        if request.method == "PUT":
            body = request.body()
            if stored is not None:
                return request.reply(409)
            self.entries[kind, name] = body
            return request.reply(201)
        if stored is None:
            return request.reply(404)
        if request.method == "HEAD":
            return request.reply(200, length=len(stored))
        return request.reply(200, stored)


def status(code: int, **headers: str) -> Fault:
    def fault(request: Request, stored: bytes | None) -> object:
        request.body()
        return request.reply(code, b"no", **headers)

    return fault


def redirect(url: str) -> Fault:
    def fault(request: Request, stored: bytes | None) -> object:
        request.body()
        return request.reply(302, Location=url + request.path)

    return fault


def changed(change: Callable[[bytes], bytes]) -> Fault:
    """A fault that sends an existing entry after `change` has changed its bytes."""
    return lambda request, stored: request.reply(200, change(stored)) if stored is not None else None


def _html(request: Request, stored: bytes | None) -> object:
    request.body()
    return request.reply(200, HTML, Content_Type="text/html")


def _cut_off(request: Request, stored: bytes | None) -> object:
    request.reply(200, (stored or b"x" * 100)[:50], length=len(stored or b"x" * 100) + 1000)
    return False


def _endless(request: Request, stored: bytes | None) -> object:
    request.sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    with suppress(OSError):
        while not request.stop.is_set():
            request.sock.sendall(b"10000\r\n" + bytes(0x10000) + b"\r\n")
    return False


def _reset(request: Request, stored: bytes | None) -> object:
    if request.method == "GET":
        with suppress(OSError):
            request.reply(200, (stored or b"")[:10], length=100_000)
    # with a linger time of 0, `close` sends RST
    request.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.sock.close()
    return False


def _drip(request: Request, stored: bytes | None) -> object:
    request.reply(200, length=len(stored or b"x" * 100))
    for byte in stored or b"x" * 100:
        if request.stop.wait(0.1):
            break
        request.sock.sendall(bytes([byte]))
    return False


def _silence(request: Request, stored: bytes | None) -> object:
    request.stop.wait()
    return False


def _garbage(request: Request, stored: bytes | None) -> object:
    request.sock.sendall(b"\x16\x03\x01 this is no HTTP \xff\xfe" * 10 + b"\r\n\r\n")
    return False


def _endless_headers(request: Request, stored: bytes | None) -> object:
    request.sock.sendall(b"HTTP/1.1 200 OK\r\n")
    with suppress(OSError):
        for number in range(100_000):
            request.sock.sendall(b"X-%d: %s\r\n" % (number, b"y" * 200))
    return False


def _false_success(request: Request, stored: bytes | None) -> object:
    """Report success, but send and store nothing."""
    request.body()
    return request.reply(200, length=0)


#: Faults for every kind of request.
FAULTS: Mapping[str, Fault] = {
    "a page of HTML": _html,
    "a reset": _reset,
    "a drip": _drip,
    "silence": _silence,
    "garbage": _garbage,
    "headers without end": _endless_headers,
    "a false success": _false_success,
    "asked to come back soon": status(429, Retry_After="0"),
    "asked to come back tomorrow": status(503, Retry_After="86400"),
    "a redirect to itself": redirect(""),
    **{
        str(code): status(code)
        for code in (400, 401, 403, 404, 405, 408, 409, 410, 412, 413, 418, 429, 500, 501, 502, 503, 504, 507)
    },
}

#: Further faults for GET requests.
READ_FAULTS: Mapping[str, Fault] = {
    "cut off": _cut_off,
    "without end": _endless,
    "one bit": changed(lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    "a byte short": changed(lambda data: data[:-1]),
    "a byte long": changed(lambda data: data + b"\0"),
    "nothing": changed(lambda data: b""),
    "zeros": changed(lambda data: bytes(len(data))),
    "100 MB": changed(lambda data: bytes(100_000_000)),
}
