"""The way to a host: its addresses, the proxy before it, and whose certificates count."""

from __future__ import annotations

import socket
import ssl
import threading
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from trtbuild.store.transports.pace import Silence


@dataclass(frozen=True)
class Proxy:
    """A proxy of the environment: where, and the value of ``Proxy-Authorization``, if any."""

    host: str
    port: int
    authorization: str | None = field(repr=False)


class Addresses:
    """Where a host is, found once. getaddrinfo cannot be interrupted, so a thread asks that nobody must wait for."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._lock = threading.Lock()
        self._done: threading.Event | None = None
        self._found: list[Any] = []
        self._error: OSError | None = None

    def get(self, wait_s: float) -> list[Any]:
        """What getaddrinfo says. Raises its error, or Silence."""
        with self._lock:
            if self._done is None:
                self._done = threading.Event()
                threading.Thread(target=self._ask, args=(self._done,), daemon=True, name="resolver").start()
        if not self._done.wait(wait_s):
            raise Silence(wait_s, some=False)
        if self._error is not None:
            raise self._error
        return self._found

    def prefer(self, address: Any) -> None:
        """`address` works: it comes first from now on."""
        self._found = [address, *(other for other in self._found if other != address)]

    def _ask(self, done: threading.Event) -> None:
        try:
            self._found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except UnicodeError:
            self._error = socket.gaierror(socket.EAI_NONAME, "it is no name of a host")
        except OSError as error:
            self._error = error
        done.set()


class Route:
    """How connections to one host are made. Holds no credentials but the proxy's."""

    def __init__(self, host: str, port: int, *, tls: bool, proxy: Proxy | None) -> None:
        self.host, self.port, self.tls, self.proxy = host, port, tls, proxy
        self.addresses = Addresses(proxy.host, proxy.port) if proxy else Addresses(host, port)

    @cached_property
    def context(self) -> ssl.SSLContext:
        """Verifies against the system's certificates (or $SSL_CERT_FILE), and certifi's where there are none."""
        paths = ssl.get_default_verify_paths()
        if paths.cafile is None and paths.capath is None:
            try:
                import certifi
            except ImportError:
                pass
            else:
                return ssl.create_default_context(cafile=certifi.where())
        return ssl.create_default_context()
