"""Finds the proxy for a host, in the usual environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.parse import unquote, urlsplit

from trtbuild.errors import ConfigurationError
from trtbuild.store.transports.credentials import basic_header
from trtbuild.store.transports.route import Proxy


def is_loopback(host: str) -> bool:
    """Whether `host` is localhost or a loopback address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name: another machine may be called 127.example.com
        return False


def proxy_for(scheme: str, host: str, environment: Mapping[str, str]) -> Proxy | None:
    """The proxy from ``https_proxy``, ``http_proxy``, ``all_proxy`` and ``no_proxy``, in small letters or capitals.

    There is no proxy for loopback. In a CGI program, HTTP_PROXY is ignored, because its value comes from a client's header.
    Raises ConfigurationError for an invalid URL, and for a proxy whose scheme is not http.
    """

    def variable(name: str) -> str:
        if name == "http_proxy" and "REQUEST_METHOD" in environment:  # httpoxy
            return environment.get(name, "")
        return environment.get(name) or environment.get(name.upper(), "")

    proxy_url = variable(f"{scheme}_proxy") or variable("all_proxy")
    if not proxy_url or is_loopback(host) or _is_excepted(host, variable("no_proxy")):
        return None
    try:
        parts = urlsplit(proxy_url if "://" in proxy_url else f"http://{proxy_url}")
        proxy_host, port = parts.hostname, parts.port
    except ValueError:
        proxy_host = port = None
    if not proxy_host or parts.scheme != "http":
        raise ConfigurationError(
            f"the proxy that {scheme}_proxy or all_proxy names cannot be used",
            hint="http://[user:password@]host[:port]",
        )
    login = None
    if parts.username is not None:
        login = basic_header(unquote(parts.username), unquote(parts.password or ""))
    return Proxy(proxy_host, port or 80, login)


def _is_excepted(host: str, no_proxy: str) -> bool:
    """Whether the list `no_proxy` excludes `host`. Its entries are names (with their subdomains), addresses, networks
    (``10.0.0.0/8``) or ``*``."""
    for entry in (word.strip().lower() for word in no_proxy.split(",")):
        name = entry.removeprefix("*.").removeprefix(".")
        if entry == "*" or (name and (host == name or host.endswith(f".{name}"))):
            return True
        if "/" in entry:
            try:
                if ip_address(host) in ip_network(entry, strict=False):
                    return True
            except ValueError:
                continue
    return False
