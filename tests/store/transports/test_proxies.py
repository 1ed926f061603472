"""`proxy_for` reads the environment and chooses the proxy for a host."""

from __future__ import annotations

import pytest

from trtbuild.errors import ConfigurationError
from trtbuild.store.transports.proxies import proxy_for
from trtbuild.store.transports.route import Proxy

PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("scheme", "environment", "uses_proxy"),
    [
        ("https", {}, False),
        ("https", {"HTTPS_PROXY": PROXY}, True),
        ("https", {"https_proxy": PROXY}, True),
        ("https", {"https_proxy": PROXY, "HTTPS_PROXY": "http://other"}, True),
        ("https", {"HTTP_PROXY": PROXY}, False),
        ("https", {"ALL_PROXY": PROXY}, True),
        ("https", {"https_proxy": "proxy.example:3128"}, True),
        ("http", {"HTTP_PROXY": PROXY}, True),
        ("http", {"HTTP_PROXY": PROXY, "REQUEST_METHOD": "GET"}, False),
        ("http", {"http_proxy": PROXY, "REQUEST_METHOD": "GET"}, True),
        ("https", {"HTTPS_PROXY": PROXY, "NO_PROXY": "a.b, cache.example"}, False),
        ("https", {"HTTPS_PROXY": PROXY, "no_proxy": ".example"}, False),
        ("https", {"HTTPS_PROXY": PROXY, "no_proxy": "*.example"}, False),
        ("https", {"HTTPS_PROXY": PROXY, "no_proxy": "*"}, False),
        ("https", {"HTTPS_PROXY": PROXY, "no_proxy": "ache.example,example.com,,10.0.0.0/8"}, True),
    ],
)
def test_chooses_the_proxy_from_the_environment(scheme: str, environment: dict[str, str], uses_proxy: bool) -> None:
    expected = Proxy("proxy.example", 3128, None) if uses_proxy else None
    assert proxy_for(scheme, "cache.example", environment) == expected


def test_the_variable_no_proxy_accepts_a_network() -> None:
    environment = {"HTTPS_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8"}
    assert proxy_for("https", "10.1.2.3", environment) is None
    assert proxy_for("https", "11.1.2.3", environment) is not None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_uses_no_proxy_for_loopback(host: str) -> None:
    assert proxy_for("http", host, {"HTTP_PROXY": PROXY, "ALL_PROXY": PROXY}) is None


@pytest.mark.parametrize("host", ["127.example.com", "localhost.example.com", "128.0.0.1", "::2"])
def test_uses_the_proxy_for_hosts_that_resemble_loopback(host: str) -> None:
    assert proxy_for("http", host, {"HTTP_PROXY": PROXY}) is not None


def test_repr_does_not_show_the_login() -> None:
    proxy = proxy_for("https", "cache.example", {"HTTPS_PROXY": "http://me:hunter2@proxy.example"})
    assert proxy is not None
    # the base64 of "me:hunter2"
    assert (proxy.host, proxy.port, proxy.authorization) == ("proxy.example", 80, "Basic bWU6aHVudGVyMg==")
    assert "hunter2" not in repr(proxy)
    assert "bWU6" not in repr(proxy)


@pytest.mark.parametrize(
    "proxy", ["socks5://me:hunter2@proxy.example", "https://proxy.example", "http://", "http://a:hunter2"]
)
def test_an_invalid_proxy_is_an_error(proxy: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        proxy_for("https", "cache.example", {"HTTPS_PROXY": proxy})
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None  # a traceback would show the text of the first error, with the password
