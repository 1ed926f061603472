"""Bazel's HTTP cache protocol: GET, HEAD and PUT of ``<url>/ac/<key>`` and ``<url>/cas/<sha256>``.

bazel-remote, nginx with WebDAV and other servers support this protocol (docs/team-cache.md).

Rules
1. The remote's credentials are sent to the host of the URL only (with plain http, through the proxy if there is one). A
   redirect is followed within the origin (scheme, host and port), at most `_MAX_REDIRECTS` times. After PUT, only 307 and
   308 are followed. Any other redirect raises RemoteRefused.
2. Errors are raised without their causes, because a cause may contain URLs, headers or lines of netrc.
3. A connection stays open after a request, and the server may close it while it is idle. If a reused connection breaks
   before a byte of the answer was received, the request is sent again over a new connection. This is safe, because all
   requests can be repeated.
4. During a request, each thread has its own connection. At most `connections` idle connections stay open.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urljoin, urlsplit

from trtbuild.errors import ConfigurationError, RemoteDown, RemoteFault, RemoteFull, RemoteLied, RemoteRefused
from trtbuild.store.local.layout import Kind
from trtbuild.store.transports import credentials, faults
from trtbuild.store.transports.connection import Connection, NotHttp, read_chunked_body
from trtbuild.store.transports.faults import Action
from trtbuild.store.transports.pace import Silence, Traffic
from trtbuild.store.transports.proxies import is_loopback, proxy_for
from trtbuild.store.transports.route import Proxy, Route
from trtbuild.store.transports.settings import RemoteSettings
from trtbuild.store.transports.transport import TIMED_FACTOR, Transport

_MAX_REDIRECTS = 3
_REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class _Answer:
    """The answer of the server to a request."""

    status: int
    headers: http.client.HTTPMessage
    #: The body of an answer 200 to GET, otherwise empty.
    data: bytes


class HttpTransport(Transport):
    """See `transport.Transport`.

    Raises ConfigurationError for an invalid proxy, invalid or unreadable credentials, and a URL without a valid host.
    """

    # `decides_races` stays False: a client cannot know whether the server accepts only one of several simultaneous writers.

    def __init__(self, settings: RemoteSettings, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self.place = credentials.public_place(settings.url)
        self._settings = settings
        parts = urlsplit(settings.url)
        tls = parts.scheme == "https"
        host = parts.hostname or ""
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
        proxy = proxy_for(parts.scheme, host, environment)
        self._route = Route(host, port, tls=tls, proxy=proxy)
        self._traffic = Traffic()
        self._login = credentials.find_credentials(settings.name, settings.url, environment)
        if self._login and not tls and not is_loopback(host):
            self.warnings = (
                f"{self.place}: credentials (from {self._login.source}) are sent without encryption: use https",
            )
        path = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~-._")
        self._origin = self.place.removesuffix(parts.path.rstrip("/"))
        # A proxy for plain http needs the whole URL in the request line.
        self._base_path = f"{self._origin if proxy and not tls else ''}{path}"
        self._query = f"?{quote(parts.query, safe='/%:@!$&*+,;=~-._?')}" if parts.query else ""
        self._common_headers = self._headers(host, port, parts.scheme, proxy)
        self._idle_connections: list[Connection] = []
        self._busy_connections: set[Connection] = set()
        self._lock = threading.Lock()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"HttpTransport({self.place!r})"

    def get(self, kind: Kind, name: str, limit: int, *, timed: bool = False) -> bytes | None:
        total_s = TIMED_FACTOR * self._settings.patience_s if timed else None
        answer = self._request("GET", kind, name, limit=limit, total_s=total_s)
        if answer.status in (404, 410):
            return None
        if answer.status != 200:
            raise self._fault(answer, "read")
        self._reject_html(answer)
        return answer.data

    def has(self, kind: Kind, name: str) -> bool:
        answer = self._request("HEAD", kind, name)
        if answer.status in (404, 410):
            return False
        if answer.status not in (200, 204):
            raise self._fault(answer, "read")
        self._reject_html(answer)
        return True

    def put(self, kind: Kind, name: str, data: bytes | memoryview, *, once: bool) -> bool:
        answer = self._request("PUT", kind, name, memoryview(data).cast("B"), once=once)
        if answer.status in (200, 201, 202, 204):
            return True
        if answer.status in (409, 412):
            return False
        if answer.status in (413, 507):
            why = f"takes no entry of {len(data)} bytes (413)" if answer.status == 413 else "is full (507)"
            raise RemoteFull(
                f"{self.place} {why}", hint="collect it, or raise its limit (client_max_body_size of nginx)"
            )
        raise self._fault(answer, "write")

    def close(self) -> None:
        """Close all connections. Requests of other threads end at once with RemoteDown."""
        with self._lock:
            self._is_closed = True
            idle, busy = self._idle_connections, list(self._busy_connections)
            self._idle_connections = []
        for connection in idle:
            connection.close()
        for connection in busy:
            connection.abort()

    def _headers(self, host: str, port: int, scheme: str, proxy: Proxy | None) -> str:
        try:
            if ":" in host:
                shown_host = f"[{host}]"
            else:
                shown_host = host if host.isascii() else host.encode("idna").decode()
        except UnicodeError:
            raise ConfigurationError(
                f"{self.place}: {host!r:.80} is not a name of a host", hint="write one such as https://cache.example"
            ) from None
        lines = [f"Host: {shown_host}" if port == _DEFAULT_PORTS[scheme] else f"Host: {shown_host}:{port}"]
        lines += ["User-Agent: trtbuild", "Accept-Encoding: identity"]
        if self._login:
            lines.append(f"Authorization: {self._login.header}")
        if proxy and proxy.authorization and scheme == "http":
            lines.append(f"Proxy-Authorization: {proxy.authorization}")
        return "".join(f"{line}\r\n" for line in lines)

    def _request(
        self,
        method: str,
        kind: Kind,
        name: str,
        body: memoryview | None = None,
        *,
        limit: int = 0,
        once: bool = False,
        total_s: float | None = None,
    ) -> _Answer:
        header_lines = "Accept: application/json\r\n" if kind == "ac" and method != "PUT" else ""
        if body is not None:
            content_type = "application/json" if kind == "ac" else "application/octet-stream"
            header_lines = f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
            if once:  # nginx, as docs/team-cache.md configures it, does not need this; other servers may
                header_lines += "If-None-Match: *\r\n"
        path = f"{self._base_path}/{kind}/{name}{self._query}"
        for _ in range(_MAX_REDIRECTS + 1):
            head = f"{method} {path} HTTP/1.1\r\n{self._common_headers}{header_lines}\r\n".encode("latin-1")
            answer = self._attempt_request(method, head, body, limit, total_s)
            # Only 307 and 308 keep the method: after the other statuses, a client would send GET in place of PUT.
            if answer.status not in _REDIRECT_STATUSES or (method == "PUT" and answer.status not in (307, 308)):
                return answer
            path = self._redirect_target(path, answer)
        raise RemoteRefused(f"{self.place} redirects in circles", hint="give the URL that it redirects to")

    def _redirect_target(self, path: str, answer: _Answer) -> str:
        url = path if path.startswith(self._origin) else f"{self._origin}{path}"
        try:
            target = urlsplit(urljoin(url, answer.headers.get("Location", "")))
            host, port = target.hostname or "", target.port or _DEFAULT_PORTS.get(target.scheme)
        except ValueError:
            host, port, target = "", None, urlsplit("")
        own = urlsplit(self._origin)
        if (target.scheme, host, port) != (own.scheme, own.hostname, self._route.port):
            other_server = f"{target.scheme}://{host}" if host else "nowhere"
            raise RemoteRefused(
                f"{self.place} redirects to another server ({other_server[:200]!r}), which is not followed",
                hint="a login page, or a remote that moved: give the URL of the cache itself",
            )
        new_path = quote(target.path or "/", safe="/%:@!$&'()*+,;=~-._")
        if target.query:
            new_path += "?" + quote(target.query, safe="/%:@!$&*+,;=~-._?")
        return f"{self._origin}{new_path}" if self._route.proxy and not self._route.tls else new_path

    def _attempt_request(
        self, method: str, head: bytes, body: memoryview | None, limit: int, total_s: float | None
    ) -> _Answer:
        """Send one request. Every error is a RemoteFault without a cause (rule 2)."""
        try:
            connection = self._idle_connection()
            if connection is not None:
                connection.limit_total_time(total_s)
                with contextlib.suppress(_StaleConnection):
                    return self._exchange(connection, method, head, body, limit, reused=True)
            connection = self._new_connection(total_s)
            return self._exchange(connection, method, head, body, limit, reused=False)
        except RemoteFault:
            raise
        except (Silence, OSError, http.client.HTTPException, NotHttp) as error:
            fault = self._closed_fault() if self._is_closed else faults.connection_fault(self.place, self._route, error)
        raise fault

    def _idle_connection(self) -> Connection | None:
        while True:
            with self._lock:
                if self._is_closed:
                    raise self._closed_fault()
                if not self._idle_connections:
                    return None
                connection = self._idle_connections.pop()
                self._busy_connections.add(connection)
            if connection.is_usable():
                return connection
            self._drop(connection)

    def _new_connection(self, total_s: float | None) -> Connection:
        connection = Connection(self._route, self._traffic, self._settings.patience_s)
        connection.limit_total_time(total_s)
        with self._lock:
            if self._is_closed:
                raise self._closed_fault()
            self._busy_connections.add(connection)
        try:
            connection.connect()
        except BaseException:
            self._drop(connection)
            raise
        return connection

    def _drop(self, connection: Connection) -> None:
        with self._lock:
            self._busy_connections.discard(connection)
        connection.close()

    def _exchange(
        self, connection: Connection, method: str, head: bytes, body: memoryview | None, limit: int, *, reused: bool
    ) -> _Answer:
        reusable = False
        try:
            try:
                response = connection.exchange(method, head, body)
            except (OSError, http.client.HTTPException):
                if reused and not connection.received_bytes and not self._is_closed:
                    raise _StaleConnection from None
                raise
            data = b""
            if response.status == 200 and method == "GET":
                data = self._read_body(response, limit)
                reusable = not response.will_close
            else:
                reusable = connection.drain_answer(response)
            return _Answer(response.status, response.headers, data)
        finally:
            with self._lock:
                self._busy_connections.discard(connection)
                reusable = reusable and not self._is_closed and len(self._idle_connections) < self._settings.connections
                if reusable:
                    self._idle_connections.append(connection)
            if not reusable:
                connection.close()

    def _read_body(self, response: http.client.HTTPResponse, limit: int) -> bytes:
        announced = response.length
        if announced is not None and announced > limit:
            raise RemoteLied(f"{self.place} sends {announced} bytes, but at most {limit} are allowed")
        data = read_chunked_body(response, limit) if response.chunked else response.read(limit + 1)
        if len(data) > limit:
            raise RemoteLied(f"{self.place} sends more than {limit} bytes")
        if announced is not None and len(data) < announced:
            raise RemoteDown(f"{self.place} broke off after {len(data)} of {announced} bytes", is_transient=True)
        return data

    def _reject_html(self, answer: _Answer) -> None:
        if (answer.headers.get("Content-Type") or "").partition(";")[0].strip().lower() == "text/html":
            raise RemoteLied(
                f"{self.place} answers with a page of HTML",
                hint="a login page, or the URL of something else: check the url of the remote",
            )

    def _closed_fault(self) -> RemoteDown:
        return RemoteDown(f"{self.place}: it was closed")

    def _fault(self, answer: _Answer, action: Action) -> RemoteFault:
        retry_after_s = faults.parse_retry_after(answer.headers.get("Retry-After"))
        if answer.status in (401, 403, 407):
            return faults.login_fault(self.place, self._settings.name, answer.status, action, self._login)
        return faults.status_fault(self.place, answer.status, action, retry_after_s)


class _StaleConnection(Exception):
    """The server has closed a connection while it was idle."""
