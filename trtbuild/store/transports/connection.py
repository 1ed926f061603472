"""One HTTP/1.1 connection with time limits for resolving, connecting, sending and reading.

Requests are written to a socket, and the standard library's HTTPResponse reads the answer. This takes half of urllib3's CPU
time: 0.15 ms for an entry of 256 KiB (measured with 1,400 entries from nginx on loopback, Python 3.11).
"""

from __future__ import annotations

import http.client
import io
import re
import select
import socket
import ssl
import sys
import time
from collections.abc import Callable
from typing import Any, cast

from trtbuild.store.transports.pace import Pace, Silence, Traffic
from trtbuild.store.transports.route import Proxy, Route
from trtbuild.store.transports.transport import MIN_BYTES_PER_S

#: The maximum number of bytes before the body of an answer. The library limits lines and headers, but not the number of
#: ``100 Continue`` answers.
_MAX_HEAD_SIZE = 256 << 10

#: The largest extension of the time limit for the answer to an upload, as a multiple of `patience_s`. It applies on Linux,
#: if no proxy is configured. There may still be unknown proxies, for example in front of the server. With this factor,
#: limit and extension together are three times `patience_s`. In this time, a proxy must pass on 1 MiB (the largest chunk).
#: The factor is small, because trtbuild also waits that long for a server that never answers.
_MAX_EXTENSION_FACTOR = 2


class NotHttp(Exception):
    """The answer is not HTTP."""


class Connection:
    """A reusable connection, for one thread at a time. Other threads may call `abort` only."""

    def __init__(self, route: Route, traffic: Traffic, patience_s: float) -> None:
        self._route = route
        self._pace = Pace(traffic, patience_s)
        self._sock: socket.socket | None = None
        #: The number of bytes that may still arrive before the body of the answer (`_MAX_HEAD_SIZE`).
        self._head_left = 0
        self._aborted = False
        #: Whether no request was sent since `connect`.
        self._is_new = False
        self._sending_failed = False
        #: The number of received bytes of the answer.
        self.received_bytes = 0

    def limit_total_time(self, total_s: float | None) -> None:
        """Limit the total time of all following calls to `total_s` seconds. With None, remove the limit."""
        self._pace.limit_total_time(total_s)

    def connect(self) -> None:
        """Connect to the server. Raises OSError (including ssl.SSLError), Silence, NotHttp."""
        self._pace.begin_attempt()
        self._is_new = True
        addresses = self._route.addresses.get(self._pace.remaining_s())
        for number, address in enumerate(addresses):
            is_last = number == len(addresses) - 1
            try:
                # Half of the remaining time, so that the next address can be tried, too.
                self._open_socket(address, self._pace.remaining_s() / (1 if is_last else 2))
                break
            except TimeoutError:
                if is_last:
                    raise Silence(self._pace.patience_s, received_any=False) from None
            except OSError:
                if is_last:
                    raise
        if len(addresses) > 1:
            self._route.addresses.prefer(address)
        try:
            if self._route.proxy and self._route.tls:
                self._open_tunnel(self._route.proxy)
            if self._route.tls:
                assert self._sock is not None
                self._sock.settimeout(self._pace.remaining_s())
                self._sock = self._route.context.wrap_socket(
                    self._sock, server_hostname=self._route.host, do_handshake_on_connect=False
                )
                self._sock.do_handshake()
        except TimeoutError:
            raise Silence(self._pace.patience_s, received_any=False) from None

    def is_usable(self) -> bool:
        """Whether the connection can be used again: all was sent, the server sent no more, and did not close it."""
        return self._sock is not None and not self._sending_failed and not self._is_readable(0)

    def exchange(self, method: str, head: bytes, body: memoryview | None) -> http.client.HTTPResponse:
        """Send a request and read the head of its answer. Raises OSError, Silence, NotHttp, http.client.HTTPException."""
        if not self._is_new:
            self._pace.begin_attempt()
        self._is_new = False
        self.received_bytes, self._head_left = 0, _MAX_HEAD_SIZE
        try:
            self._send(memoryview(head))
            if body is not None:
                self._send(body)
                self._wait_until_sent(len(body))
        except (OSError, Silence):
            # A server may reject a body before it has read all of it. Then its answer is more precise than this error.
            self._sending_failed = True
            if not self._is_readable(0.05):
                raise
            self._pace.begin_attempt()
        response = http.client.HTTPResponse(cast(socket.socket, self), method=method)
        response.begin()
        self._head_left = sys.maxsize
        self._pace.note_head()
        return response

    def makefile(self, *_: object) -> io.BufferedReader:
        """The file from which HTTPResponse reads the answer."""
        return io.BufferedReader(_IncomingStream(self._receive), 32 << 10)

    def drain_answer(self, response: http.client.HTTPResponse) -> bool:
        """Read the rest of a short answer. Returns whether the connection can be used again. It cannot if the answer is
        not short, or has no known length, or if too few bytes arrive in 0.2 s (rule 2 of pace.py)."""
        if response.will_close or response.chunked or response.length is None or response.length > 16 << 10:
            return False
        self._pace.patience_s, patience_s = min(0.2, self._pace.patience_s), self._pace.patience_s
        try:
            self._pace.begin_attempt()
            response.read()
        except (OSError, Silence, http.client.HTTPException):
            return False
        finally:
            self._pace.patience_s = patience_s
        return True

    def abort(self) -> None:
        """End the request of another thread on this connection."""
        self._aborted = True
        if (sock := self._sock) is not None:
            try:
                # SSLSocket.shutdown() would remove the TLS object, which the other thread still uses.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            except OSError:
                return

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()

    def _open_socket(self, address: Any, timeout_s: float) -> None:
        family, kind, protocol, _, socket_address = address
        sock = socket.socket(family, kind, protocol)
        self._sock = sock  # now `abort` can shut it down
        try:
            if self._aborted:
                raise ConnectionAbortedError
            sock.settimeout(timeout_s)
            sock.connect(socket_address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            self._sock = None
            sock.close()
            raise

    def _open_tunnel(self, proxy: Proxy) -> None:
        host = f"[{self._route.host}]" if ":" in self._route.host else self._route.host
        authority = f"{host}:{self._route.port}"
        login = f"Proxy-Authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
        self._head_left = _MAX_HEAD_SIZE
        self._send(memoryview(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{login}\r\n".encode()))
        # The answer is read byte by byte, because the bytes after it belong to TLS.
        response = http.client.HTTPResponse(cast(socket.socket, _UnbufferedSocket(self._receive)), method="CONNECT")
        try:
            response.begin()
        except http.client.HTTPException:
            raise NotHttp("the proxy's answer is not HTTP") from None
        if response.status != 200:
            raise NotHttp(f"the proxy answered {response.status}")

    def _send(self, data: memoryview) -> None:
        assert self._sock is not None
        while data:
            self._sock.settimeout(self._pace.remaining_s())
            try:
                sent = self._sock.send(data)
            except TimeoutError:
                continue
            self._pace.count_moved(sent)
            data = data[sent:]

    def _wait_until_sent(self, size: int) -> None:
        """Wait until the kernel has sent a body of `size` bytes, then extend the time limit for the answer. Without TLS,
        return as soon as an answer arrives.

        Linux reports the number of bytes in the kernel's buffers, which must decrease. Bytes in the buffers of proxies are
        not reported. So the time limit is extended by a second for each `MIN_BYTES_PER_S` bytes. On Linux, without a
        configured proxy, the extension is at most `_MAX_EXTENSION_FACTOR` times `patience_s`.
        """
        self._pace.begin_longer_window(0)
        queued, step_s = self._queued_bytes(), 0.001
        while queued:
            step_s = min(2 * step_s, self._pace.patience_s / 8, self._pace.remaining_s())
            if isinstance(self._sock, ssl.SSLSocket):  # the received bytes may be TLS's own, not an answer
                time.sleep(step_s)
            elif self._is_readable(step_s):
                return
            still_queued = self._queued_bytes()
            self._pace.count_moved(max(queued - still_queued, 0))
            queued = still_queued
        extension_s = size / MIN_BYTES_PER_S
        if self._route.proxy is None and sys.platform.startswith("linux"):
            extension_s = min(extension_s, _MAX_EXTENSION_FACTOR * self._pace.patience_s)
        self._pace.begin_longer_window(extension_s)

    def _queued_bytes(self) -> int:
        """The number of sent bytes that the other side has not acknowledged. It is 0 if the kernel does not report it."""
        if not sys.platform.startswith("linux") or self._sock is None:
            return 0
        import fcntl
        import termios

        try:
            return int.from_bytes(fcntl.ioctl(self._sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"), sys.byteorder)
        except (OSError, ValueError):
            return 0

    def _is_readable(self, wait_s: float) -> bool:
        assert self._sock is not None
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            return True
        poll = select.poll()
        try:
            poll.register(self._sock, select.POLLIN)
        except ValueError:  # closed
            return True
        return bool(poll.poll(wait_s * 1000))

    def _receive(self, buffer: Any) -> int:
        assert self._sock is not None
        while True:
            self._sock.settimeout(self._pace.remaining_s())
            try:
                size = self._sock.recv_into(buffer)
            except TimeoutError:
                continue
            self._pace.count_received(size)
            self.received_bytes += size
            self._head_left -= size
            if self._head_left < 0:
                raise NotHttp("its headers do not end")
            return size


def read_chunked_body(response: http.client.HTTPResponse, limit: int) -> bytes:
    """Read at most `limit` + 1 bytes of a body in chunked encoding (RFC 9112, 7.1). Raises the errors of `exchange`.

    `HTTPResponse.read` is not used, because it accepts a chunk of -1 bytes, and then reads without end.
    """
    pieces: list[bytes] = []
    received = 0
    while received <= limit:
        line = response.fp.readline(256)
        if not line:
            raise http.client.IncompleteRead(b"")
        size_text = line.partition(b";")[0].strip()
        if not line.endswith(b"\n") or not re.fullmatch(rb"[0-9A-Fa-f]{1,15}", size_text):
            raise NotHttp("its chunks have no size")
        size = int(size_text, 16)
        piece = response.fp.read(min(size, limit + 1 - received)) if size else b""
        pieces.append(piece)
        received += len(piece)
        if received > limit:
            break
        if len(piece) < size:
            raise http.client.IncompleteRead(b"")
        end = response.fp.readline(256)
        while size == 0 and end.strip():  # fields after the body
            received += len(end)
            if received > limit + _MAX_HEAD_SIZE:
                raise NotHttp("its trailers do not end")
            end = response.fp.readline(256)
        if end not in (b"\r\n", b"\n"):
            raise http.client.IncompleteRead(b"")
        if size == 0:
            response.close()
            break
    return b"".join(pieces)


class _IncomingStream(io.RawIOBase):
    def __init__(self, receive: Callable[[Any], int]) -> None:
        self._receive = receive

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        return self._receive(buffer)


class _UnbufferedSocket:
    """A socket for HTTPResponse, whose file reads one byte at a time."""

    def __init__(self, receive: Callable[[Any], int]) -> None:
        self._receive = receive

    def makefile(self, *_: object) -> io.BufferedReader:
        return io.BufferedReader(_IncomingStream(self._receive), 1)
