"""The route to a host: its addresses (DNS), its proxy, and the certificates (TLS) with which the host is verified."""

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
    """A proxy: its address, and the value of ``Proxy-Authorization``, if any."""

    host: str
    port: int
    authorization: str | None = field(repr=False)


class Addresses:
    """The addresses of a host. They are looked up only once.

    getaddrinfo cannot be interrupted, so it runs in a separate thread. The callers of `get` can then stop waiting.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._lock = threading.Lock()
        #: None before the first call of `get`.
        self._lookup_finished: threading.Event | None = None
        self._addresses: list[Any] = []
        self._error: OSError | None = None

    def get(self, wait_s: float) -> list[Any]:
        """The results of getaddrinfo. Raises OSError if the lookup fails, and Silence if it has not ended after `wait_s`
        seconds."""
        with self._lock:
            if self._lookup_finished is None:
                self._lookup_finished = threading.Event()
                threading.Thread(
                    target=self._look_up, args=(self._lookup_finished,), daemon=True, name="resolver"
                ).start()
        if not self._lookup_finished.wait(wait_s):
            raise Silence(wait_s, received_any=False)
        if self._error is not None:
            raise self._error
        return self._addresses

    def prefer(self, address: Any) -> None:
        """Put an address first. The caller has connected to this address."""
        self._addresses = [address, *(other for other in self._addresses if other != address)]

    def _look_up(self, finished: threading.Event) -> None:
        try:
            self._addresses = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except UnicodeError:
            self._error = socket.gaierror(socket.EAI_NONAME, "it is not a name of a host")
        except OSError as error:
            self._error = error
        finished.set()


class Route:
    """The route to one host. With a proxy, `addresses` are those of the proxy. A route has no credentials of the host."""

    def __init__(self, host: str, port: int, *, tls: bool, proxy: Proxy | None) -> None:
        self.host, self.port, self.tls, self.proxy = host, port, tls, proxy
        self.addresses = Addresses(proxy.host, proxy.port) if proxy else Addresses(host, port)

    @cached_property
    def context(self) -> ssl.SSLContext:
        """The TLS context. Its certificates are in $SSL_CERT_FILE, in $SSL_CERT_DIR, or in the system's places. If there
        is no such file or folder, they are those of certifi, if it is installed."""
        paths = ssl.get_default_verify_paths()
        if paths.cafile is None and paths.capath is None:
            try:
                import certifi
            except ImportError:
                pass
            else:
                return ssl.create_default_context(cafile=certifi.where())
        return ssl.create_default_context()
