"""The HTTP transport with a real nginx in its documented configuration, and with scripted servers."""

from __future__ import annotations

import datetime
import hashlib
import http.client
import ipaddress
import logging
import os
import socket
import ssl
import stat
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.store.transports.nginx import Nginx
from tests.store.transports.scripted_server import Request, Server
from trtbuild.errors import ConfigurationError, RemoteDown, RemoteFault, RemoteFull, RemoteRefused
from trtbuild.store.local.layout import Kind
from trtbuild.store.transports.directory import DirectoryTransport
from trtbuild.store.transports.http import HttpTransport
from trtbuild.store.transports.settings import RemoteSettings

DATA = b"some bytes of an engine" * 1000
NAME = hashlib.sha256(DATA).hexdigest()
LIMIT = 1 << 20
#: An environment without credentials: its home folder has no netrc.
NO_CREDENTIALS = {"HOME": "/nonexistent"}


def remote(url: str, environment: dict[str, str] | None = None) -> HttpTransport:
    return HttpTransport(RemoteSettings("team", url), NO_CREDENTIALS if environment is None else environment)


@pytest.fixture
def writer(nginx: Nginx) -> Iterator[HttpTransport]:
    transport = remote(nginx.url_of("writer"))
    yield transport
    transport.close()


@pytest.fixture
def reader(nginx: Nginx) -> Iterator[HttpTransport]:
    transport = remote(nginx.url_of("reader"))
    yield transport
    transport.close()


@pytest.mark.parametrize("kind", ["cas", "ac"])
def test_returns_put_bytes(writer: HttpTransport, reader: HttpTransport, kind: Kind) -> None:
    assert reader.get(kind, NAME, LIMIT) is None
    assert not reader.has(kind, NAME)
    assert writer.put(kind, NAME, memoryview(DATA), once=True)
    assert reader.has(kind, NAME)
    assert reader.get(kind, NAME, len(DATA)) == DATA


@pytest.mark.parametrize("size", [0, 1, 65_536, (4 << 20) + 1])
def test_returns_bytes_of_every_size(writer: HttpTransport, size: int) -> None:
    data = os.urandom(size)
    assert writer.put("cas", NAME, data, once=True)
    assert writer.get("cas", NAME, size) == data


@pytest.mark.parametrize("kind", ["cas", "ac"])
@pytest.mark.parametrize("once", [True, False])
def test_nginx_keeps_an_existing_entry_even_without_once(writer: HttpTransport, kind: Kind, once: bool) -> None:
    assert writer.put(kind, NAME, b"first", once=once)
    assert not writer.put(kind, NAME, b"second", once=once)
    assert writer.get(kind, NAME, LIMIT) == b"first"


def test_nginx_writes_the_layout_of_a_store(writer: HttpTransport, nginx: Nginx) -> None:
    writer.put("cas", NAME, DATA, once=True)
    writer.put("ac", NAME, b"{}", once=True)
    for kind, data in (("cas", DATA), ("ac", b"{}")):
        path = nginx.root / kind / NAME[:2] / NAME
        assert path.read_bytes() == data
        assert stat.S_IMODE(path.stat().st_mode) == 0o664
    names = {path.name for path in nginx.root.iterdir()} - {"gc"}  # garbage collection in other tests leaves "gc"
    assert names == {"ac", "cas", "tmp"}
    assert list((nginx.root / "tmp").iterdir()) == []


def test_rejects_writes_of_a_reader(reader: HttpTransport, writer: HttpTransport, nginx: Nginx) -> None:
    with pytest.raises(RemoteRefused, match="does not accept the credentials from the URL to write entries"):
        reader.put("cas", NAME, DATA, once=True)
    assert not (nginx.root / "cas").exists()
    writer.put("cas", NAME, DATA, once=True)
    with pytest.raises(RemoteRefused):
        reader.put("cas", NAME, DATA, once=True)
    assert reader.has("cas", NAME)


@pytest.mark.parametrize("login", ["", "reader:wrong@", "nobody:at-all@"])
def test_rejects_all_requests_without_a_valid_login(writer: HttpTransport, nginx: Nginx, login: str) -> None:
    writer.put("cas", NAME, DATA, once=True)
    stranger = remote(nginx.url.replace("http://", f"http://{login}"))
    calls: list[Callable[[], object]] = [
        lambda: stranger.get("cas", NAME, LIMIT),
        lambda: stranger.has("cas", NAME),
        lambda: stranger.put("cas", NAME, DATA, once=True),
        lambda: stranger.put("cas", "1" * 64, DATA, once=True),
        lambda: stranger.get("cas", "1" * 64, LIMIT),
    ]
    for call in calls:
        with pytest.raises(RemoteRefused, match="401"):
            call()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("DELETE", f"/cas/{NAME}", 405),
        ("POST", f"/cas/{NAME}", 405),
        ("MKCOL", "/cas/zz/", 405),
        ("MOVE", f"/cas/{NAME}", 405),
        ("COPY", f"/cas/{NAME}", 405),
        ("PROPFIND", "/cas/", 405),
        ("GET", "/", 404),
        ("GET", "/cas/", 404),
        ("GET", "/cas", 404),
        ("GET", f"/cas/{NAME[:2]}/", 404),
        ("GET", f"/cas/{NAME[:2]}/{NAME}", 404),
        ("PUT", f"/cas/{NAME[:2]}/{NAME}", 404),
        ("PUT", f"/cas/{NAME[:-1]}", 404),
        ("PUT", f"/cas/{NAME}0", 404),
        ("PUT", f"/cas/{NAME.upper()}", 404),
        ("PUT", f"/tmp/{NAME}", 404),
        ("PUT", f"/other/{NAME}", 404),
        ("GET", f"/cas/../{NAME}", 404),
        ("PUT", f"/cas/%2e%2e/%2e%2e/{NAME}", 400),
        ("PUT", "/cas/" + "%2e%2e%2f" * 8 + "x" * 40, 400),
        ("GET", f"/cas/{NAME}/../../../trtbuild.readers", 400),
        ("GET", "/trtbuild.readers", 404),
    ],
)
def test_rejects_other_methods_and_names(
    writer: HttpTransport, nginx: Nginx, method: str, path: str, status: int
) -> None:
    writer.put("cas", NAME, DATA, once=True)
    before = sorted(str(file) for file in nginx.prefix.rglob("*"))
    login = b64encode(f"writer:{nginx.passwords['writer']}".encode()).decode()
    connection = http.client.HTTPConnection("127.0.0.1", nginx.port, timeout=10)
    connection.request(
        method, path, body=b"x" if method == "PUT" else None, headers={"Authorization": f"Basic {login}"}
    )
    assert connection.getresponse().status == status
    connection.close()
    assert sorted(str(file) for file in nginx.prefix.rglob("*")) == before
    assert writer.get("cas", NAME, LIMIT) == DATA


def begin_upload(nginx: Nginx, size: int) -> socket.socket:
    """Send the head of an upload of `size` bytes. Returns the connection."""
    login = b64encode(f"writer:{nginx.passwords['writer']}".encode()).decode()
    sock = socket.create_connection(("127.0.0.1", nginx.port), 10)
    head = [f"PUT /cas/{NAME} HTTP/1.1", "Host: x", f"Authorization: Basic {login}", f"Content-Length: {size}"]
    sock.sendall("\r\n".join(head).encode() + b"\r\n\r\n")
    return sock


@pytest.mark.parametrize(("exists", "size", "status"), [(True, 1 << 20, b"409"), (False, 65 << 20, b"413")])
def test_rejects_an_upload_before_its_body(
    writer: HttpTransport, nginx: Nginx, exists: bool, size: int, status: bytes
) -> None:
    if exists:
        writer.put("cas", NAME, DATA, once=True)
    with begin_upload(nginx, size) as sock:  # no byte of the body is sent
        assert sock.recv(4096).split()[1] == status


def test_rejects_an_entry_that_is_too_large(writer: HttpTransport) -> None:
    with pytest.raises(RemoteFull, match="413"):
        writer.put("ac", NAME, bytes((64 << 20) + 1), once=True)
    assert not writer.has("ac", NAME)


def test_an_interrupted_upload_leaves_no_files(writer: HttpTransport, nginx: Nginx) -> None:
    with begin_upload(nginx, 1 << 20) as sock:
        sock.sendall(b"x" * 500_000)
        end = time.monotonic() + 10
        while not list((nginx.root / "tmp").iterdir()):
            assert time.monotonic() < end, "the upload has not begun"
            time.sleep(0.01)
        assert not writer.has("cas", NAME)
    end = time.monotonic() + 10
    while list((nginx.root / "tmp").iterdir()) and time.monotonic() < end:
        time.sleep(0.01)
    assert list((nginx.root / "tmp").iterdir()) == []
    assert not (nginx.root / "cas").exists()


def test_simultaneous_writers_of_an_entry_leave_one_intact(writer: HttpTransport) -> None:
    bodies = [bytes([number]) * 300_000 for number in range(8)]
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda body=body: results.append(writer.put("ac", NAME, body, once=True)))
        for body in bodies
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert any(results)
    assert writer.get("ac", NAME, LIMIT) in bodies


def test_a_collected_entry_is_missing_immediately(writer: HttpTransport, nginx: Nginx) -> None:
    writer.put("cas", NAME, DATA, once=True)
    assert writer.has("cas", NAME)
    assert writer.get("cas", NAME, LIMIT) == DATA
    (nginx.root / "cas" / NAME[:2] / NAME).unlink()
    assert not writer.has("cas", NAME)
    assert writer.get("cas", NAME, LIMIT) is None
    assert writer.put("cas", NAME, DATA, once=True)


def test_a_shared_directory_and_nginx_use_the_same_entries(writer: HttpTransport, nginx: Nginx) -> None:
    folder = DirectoryTransport(RemoteSettings("folder", nginx.root.as_uri()))
    writer.put("ac", NAME, b"by nginx", once=True)
    assert folder.get("ac", NAME, LIMIT) == b"by nginx"
    other = "1" * 64
    assert folder.put("ac", other, b"by hand", once=True)
    assert writer.get("ac", other, LIMIT) == b"by hand"
    assert not writer.put("ac", other, b"again", once=True)


def test_reuses_connections(writer: HttpTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    connect = socket.socket.connect

    def count_and_connect(sock: socket.socket, address: object) -> None:
        opened.append(address)
        connect(sock, address)

    monkeypatch.setattr(socket.socket, "connect", count_and_connect)
    for number in range(20):
        name = hashlib.sha256(b"%d" % number).hexdigest()
        assert writer.get("cas", name, LIMIT) is None
        assert writer.put("cas", name, DATA, once=True)
        assert not writer.put("cas", name, DATA, once=True)
        assert writer.has("cas", name)
        assert writer.get("cas", name, LIMIT) == DATA
    assert len(opened) == 1


def test_several_threads_may_use_one_transport(writer: HttpTransport) -> None:
    bodies = {hashlib.sha256(body).hexdigest(): body for body in (os.urandom(50_000) for _ in range(64))}
    wrong: list[str] = []

    def work(names: list[str]) -> None:
        for name in names:
            if not writer.put("cas", name, bodies[name], once=True) or writer.get("cas", name, LIMIT) != bodies[name]:
                wrong.append(name)

    names = list(bodies)
    threads = [threading.Thread(target=work, args=(names[number::8],)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_logs_contain_no_secret(writer: HttpTransport, nginx: Nginx, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = nginx.passwords["writer"]
    writer.put("cas", NAME, DATA, once=True)
    assert remote(nginx.url_of("reader") + "?sig=hunter2").has("cas", NAME)
    lines = nginx.log()
    assert any(" reader [" in line and "HEAD" in line and " 200 " in line for line in lines)
    assert "hunter2" not in "".join(lines)
    assert any(" writer [" in line and "PUT" in line and " 201 " in line for line in lines)
    encoded_login = b64encode(f"writer:{secret}".encode()).decode()
    for text in (*lines, (nginx.prefix / "logs" / "error.log").read_text(), caplog.text, repr(writer), writer.place):
        assert secret not in text
        assert encoded_login not in text


def test_errors_and_their_attributes_contain_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    texts: list[str] = []
    for handler in (
        lambda request: request.reply(401),
        lambda request: request.reply(500),
        lambda request: request.reply(302, Location=f"http://x:{request.path}@y.example/?hunter2"),
        lambda request: False,
        lambda request: request.sock.sendall(b"hunter2\r\n\r\n"),
    ):
        with Server(handler) as server:
            url = server.url.replace("http://", "http://hunter1:hunter2@") + "?sig=hunter3"
            settings = RemoteSettings("team", url)
            team = HttpTransport(settings, NO_CREDENTIALS)
            assert "hunter" not in repr(team) + team.place + repr(settings) + str(team.warnings)
            with pytest.raises(RemoteFault) as caught:
                team.get("cas", NAME, LIMIT)
            assert server.requests[-1].path == f"/cache/cas/{NAME}?sig=hunter3", "the query is for the server"
            error: BaseException | None = caught.value
            while error is not None:
                texts += [str(error), repr(error), repr(vars(error))]
                error = error.__cause__ or error.__context__
    assert len(texts) >= 3 * 5, "three texts for each of five errors"
    assert "hunter" not in "".join(texts)
    assert "hunter" not in caplog.text


def test_sends_the_headers_that_bazel_remote_needs() -> None:
    def handler(request: Request) -> bool:
        request.body()
        return request.reply(200)

    with Server(handler) as server:
        team = remote(server.url)
        team.get("ac", NAME, LIMIT)
        team.put("ac", NAME, b"{}", once=True)
        team.put("ac", NAME, b"{}", once=False)
        team.get("cas", NAME, LIMIT)
        get, put, replace, blob = (request.headers for request in server.requests)
    assert get["accept"] == "application/json"
    assert put["content-type"] == "application/json"
    assert put["if-none-match"] == "*"
    assert "if-none-match" not in replace
    assert "accept" not in blob
    assert {headers["accept-encoding"] for headers in (get, put, replace, blob)} == {"identity"}


def test_warns_about_credentials_in_clear_text() -> None:
    assert remote("http://me:secret@127.0.0.1:1").warnings == ()
    assert remote("https://me:secret@cache.example").warnings == ()
    assert remote("http://cache.example").warnings == ()
    for host in ("cache.example", "127.example.com"):
        (warning,) = remote(f"http://me:secret@{host}").warnings
        assert "without encryption" in warning
        assert "secret" not in warning


def test_sends_plain_http_to_the_proxy_with_the_whole_url() -> None:
    with Server(lambda request: request.reply(200, b"via proxy")) as proxy:
        environment = {
            **NO_CREDENTIALS,
            "http_proxy": proxy.url.replace("http://", "http://me:pass@").removesuffix("/cache"),
        }
        team = remote("http://u:v@cache.example/team", environment)
        assert team.get("cas", NAME, LIMIT) == b"via proxy"
        (request,) = proxy.requests
    assert request.path == f"http://cache.example/team/cas/{NAME}"
    assert request.headers["host"] == "cache.example"
    assert request.headers["proxy-authorization"] == "Basic " + b64encode(b"me:pass").decode()
    assert request.headers["authorization"] == "Basic " + b64encode(b"u:v").decode()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a self-signed certificate for 127.0.0.1 and cache.example, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "cache.example")])
    names: list[x509.GeneralName] = [
        x509.DNSName("cache.example"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "cache.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(signed.public_bytes(serialization.Encoding.PEM) + private)
    return path


class TlsServer(Server):
    """A `Server` that begins TLS after `delay_s`. With `tunnelled`, it first answers a CONNECT, like a proxy."""

    def __init__(
        self, handler: Callable[[Request], object], certificate: Path, *, tunnelled: bool = False, delay_s: float = 0
    ) -> None:
        super().__init__(handler)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._tunnelled = tunnelled
        self._delay_s = delay_s
        self.connects: list[Request] = []

    def _serve(self, sock: socket.socket) -> None:
        try:
            if self._tunnelled:
                request = self._read(sock)
                assert request is not None
                self.connects.append(request)
                sock.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            time.sleep(self._delay_s)
            super()._serve(self._context.wrap_socket(sock, server_side=True))
        except OSError:
            sock.close()


def serve_data(request: Request) -> bool:
    request.body()
    return request.reply(200, DATA if request.method == "GET" else b"")


def test_accepts_a_private_certificate_that_ssl_cert_file_names(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with TlsServer(serve_data, certificate) as server:
        team = remote(server.url.replace("http://", "https://me:secret@"))
        for _ in range(3):
            assert team.get("cas", NAME, LIMIT) == DATA
            assert team.put("cas", NAME, os.urandom(1 << 20), once=True)
        assert len(server.requests) == 6
        assert server.connections == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_rejects_an_invalid_certificate(certificate: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    if host == "localhost":  # the certificate is trusted, but it is for other names
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with TlsServer(serve_data, certificate) as server:
        with pytest.raises(RemoteDown, match="certificate is not valid") as caught:
            remote(f"https://me:secret@{host}:{server.port}").get("cas", NAME, LIMIT)
        assert server.connections >= 1
        assert server.requests == []
    assert "SSL_CERT_FILE" in str(caught.value)


def test_sends_https_through_a_tunnel_of_the_proxy(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with TlsServer(serve_data, certificate, tunnelled=True) as server:
        team = remote("https://cache.example", {**NO_CREDENTIALS, "HTTPS_PROXY": f"http://p:q@127.0.0.1:{server.port}"})
        assert team.get("cas", NAME, LIMIT) == DATA
        assert team.put("cas", NAME, os.urandom(1 << 20), once=True)
        (connect,) = server.connects
        tunnelled = server.requests
    assert connect.path == "cache.example:443"
    assert connect.headers["proxy-authorization"] == "Basic " + b64encode(b"p:q").decode()
    assert all("proxy-authorization" not in request.headers for request in tunnelled)
    assert [request.path for request in tunnelled] == [f"/cas/{NAME}"] * 2


def test_connecting_and_waiting_share_one_patience(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with TlsServer(lambda request: request.stop.wait(30), certificate, delay_s=1.4) as server:
        team = HttpTransport(
            RemoteSettings("team", server.url.replace("http:", "https:"), patience_s=2.0), NO_CREDENTIALS
        )
        begun = time.monotonic()
        with pytest.raises(RemoteDown):
            team.get("cas", NAME, LIMIT)
        assert time.monotonic() - begun < 3.2
        assert len(server.requests) == 1


def test_reports_a_proxy_that_rejects_the_tunnel() -> None:
    with Server(lambda request: request.reply(403)) as proxy:
        team = remote("https://cache.example", {**NO_CREDENTIALS, "HTTPS_PROXY": proxy.url.removesuffix("/cache")})
        with pytest.raises(RemoteDown, match="the proxy answered 403"):
            team.get("cas", NAME, LIMIT)
        assert [request.method for request in proxy.requests] == ["CONNECT"]


def test_reports_https_to_a_plain_http_port(nginx: Nginx) -> None:
    with pytest.raises(RemoteDown, match="TLS failed") as caught:
        remote(nginx.url.replace("http:", "https:")).get("cas", NAME, LIMIT)
    assert "does it speak TLS" in str(caught.value)


def test_reports_plain_http_to_a_tls_port(certificate: Path) -> None:
    with TlsServer(serve_data, certificate) as server:
        with pytest.raises(RemoteDown):
            remote(server.url).get("cas", NAME, LIMIT)
        assert server.connections >= 1
        assert server.requests == []


def test_an_invalid_host_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="is not a name of a host"):
        HttpTransport(RemoteSettings("team", "http://ü..example/cache"), {})
