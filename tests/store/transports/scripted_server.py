"""An HTTP server on loopback with scripted responses. It has a thread for each connection, and records all requests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field


@dataclass
class Request:
    """One request, and its connection."""

    sock: socket.socket
    method: str
    path: str
    headers: dict[str, str]
    #: The part of the body that arrived together with the head.
    start_of_body: bytes
    #: The position of the request, from 1: among all requests, and among the requests of its connection.
    number: int = 0
    number_on_connection: int = 0
    #: Set when the server is stopped.
    stop: threading.Event = field(default_factory=threading.Event)

    def body(self) -> bytes:
        """Read the whole body."""
        data, size = self.start_of_body, int(self.headers.get("content-length", "0"))
        while len(data) < size:
            more = self.sock.recv(65536)
            if not more:
                break
            data += more
        return data

    def reply(self, status: int, body: bytes = b"", *, length: int | None = None, **headers: str) -> bool:
        """Send a response. `length` is the announced length of the body, by default the real one. In header names, ``_``
        stands for ``-``. Returns True, so that the connection stays open."""
        lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body) if length is None else length}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if self.method == "HEAD" else body))
        return True


class Server:
    """A server that runs within a ``with`` block. It calls `handler` for every request, and closes the
    connection if the result is false."""

    def __init__(self, handler: Callable[[Request], object], *, receive_buffer: int | None = None) -> None:
        self._handler = handler
        self._listener = socket.socket()
        if receive_buffer:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(64)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/cache"
        #: The number of connections, and all requests with a complete head.
        self.connections = 0
        self.requests: list[Request] = []
        self.stop = threading.Event()
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Server:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for sock in [self._listener, *self._open]:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self.connections += 1
                self._open.append(sock)
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with suppress(OSError):
            number = 0
            while (request := self._read(sock)) is not None:
                number += 1
                with self._lock:
                    self.requests.append(request)
                    request.number, request.number_on_connection = len(self.requests), number
                    request.stop = self.stop
                if not self._handler(request):
                    break
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()

    def _read(self, sock: socket.socket) -> Request | None:
        data = b""
        while b"\r\n\r\n" not in data:
            more = sock.recv(4096)
            if not more:
                return None
            data += more
        head, _, start_of_body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return Request(sock, method, path, headers, start_of_body)
