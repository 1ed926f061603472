"""Object stores: moto's S3 server, servers that misbehave, and invalid URLs and credentials."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from trtbuild.errors import ConfigurationError, RemoteDown, RemoteFault, RemoteFull, RemoteLied, RemoteRefused
from trtbuild.store.transports import objects
from trtbuild.store.transports.objects import ObjectTransport
from trtbuild.store.transports.settings import RemoteSettings
from trtbuild.store.transports.transport import MIN_BYTES_PER_S

KEY, OTHER = "ab" * 32, "cd" * 32
LIMIT = 1 << 20
SECRET = "wJalrXUtnFEMI"


def remote(url: str, patience_s: float = 4.0) -> ObjectTransport:
    return ObjectTransport(RemoteSettings("team", url, patience_s=patience_s))


def test_returns_entries_and_writes_them_once(s3: str) -> None:
    store = remote(s3)
    assert store.get("ac", KEY, LIMIT) is None and not store.has("ac", KEY)
    assert store.put("ac", KEY, memoryview(b"--first--")[2:-2], once=True)
    assert not store.put("ac", KEY, b"second", once=True)
    assert store.get("ac", KEY, LIMIT) == b"first" and store.has("ac", KEY)
    assert not store.has("cas", KEY), "an `ac` entry and a `cas` entry may have the same name"
    assert store.put("ac", KEY, b"third", once=False)
    assert remote(s3).get("ac", KEY, LIMIT) == b"third"
    assert remote(f"{s3}/deeper").get("ac", KEY, LIMIT) is None
    assert store.place == s3
    with pytest.raises(RemoteLied, match="more than 3 bytes"):
        store.get("ac", KEY, 3)


def test_returns_bytes_of_every_size(s3: str, payload: Callable[[int, int], bytes]) -> None:
    store = remote(s3)
    for number, size in enumerate([0, 1, 1 << 18, (1 << 20) + 1, 7 << 20]):
        name, data = f"{number:064x}", payload(number, size)
        assert store.put("cas", name, data, once=True)
        assert store.get("cas", name, size) == data


def test_one_of_many_writers_wins(s3: str) -> None:
    store, barrier, winners = remote(s3), threading.Barrier(8), list[int]()

    def write(number: int) -> None:
        barrier.wait()
        if store.put("ac", KEY, b"%d" % number, once=True):
            winners.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 1 and store.get("ac", KEY, LIMIT) == b"%d" % winners[0]


def test_a_missing_bucket_is_an_error(s3: str) -> None:
    store = remote("s3://absent/prefix")
    with pytest.raises(RemoteRefused, match="NoSuchBucket"):
        store.get("ac", KEY, LIMIT)
    with pytest.raises(RemoteRefused, match="NoSuchBucket"):
        store.put("ac", KEY, b"x", once=True)


class Server:
    """A server that sends `answer` to every request, and then `drip` again and again.

    If `answer` is None, it sends nothing. `requests` has the first line of each request, and `heads` has the whole head.
    """

    def __init__(self, answer: bytes | None, drip: bytes = b"") -> None:
        self.answer, self.drip = answer, drip
        self.requests: list[str] = []
        self.heads: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        try:
            head = b""
            while b"\r\n\r\n" not in head:
                more = connection.recv(1 << 16)
                if not more:
                    return
                head += more
            self.heads.append(head.decode(errors="replace"))
            self.requests.append(head.split(b"\r\n")[0].decode())
            if self.answer is None:
                return  # no response
            connection.sendall(self.answer)
            while self.drip:
                connection.sendall(self.drip)
                time.sleep(0.05)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
            connection.close()
        except OSError:
            pass

    def close(self) -> None:
        self._listener.close()
        for connection in self._open:
            connection.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    """A function that starts a `Server`. After this call, requests for ``s3://`` URLs go to the server."""
    started: list[Server] = []

    def start(answer: bytes | None, drip: bytes = b"") -> Server:
        started.append(Server(answer, drip))
        monkeypatch.setenv("AWS_ENDPOINT_URL", started[-1].endpoint)
        return started[-1]

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    yield start
    for server in started:
        server.close()


def answer(status: str, body: bytes = b"", length: int | None = None, more: str = "") -> bytes:
    """An HTTP response. `length` is the announced length of the body, by default the real one. `more` has header lines."""
    size = len(body) if length is None else length
    head = f'HTTP/1.1 {status}\r\nContent-Length: {size}\r\nETag: "x"\r\n'
    head += f"Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\nConnection: close\r\n{more}\r\n"
    return head.encode() + body


def error(code: str) -> bytes:
    """The body of an error of S3."""
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{SECRET}</Message></Error>".encode()


@pytest.mark.parametrize(
    ("response", "error_type", "is_transient"),
    [
        (answer("403 Forbidden", error("AccessDenied")), RemoteRefused, False),
        (answer("401 Unauthorized"), RemoteRefused, False),
        (answer("400 Bad Request", error("ExpiredToken")), RemoteRefused, False),
        (answer("400 Bad Request", error("EntityTooLarge")), RemoteFull, False),
        (answer("405 Method Not Allowed"), RemoteRefused, False),
        (answer("413 Content Too Large"), RemoteFull, False),
        (answer("507 Insufficient Storage"), RemoteFull, False),
        (answer("429 Too Many Requests"), RemoteDown, True),
        (answer("500 Internal Server Error", error("InternalError")), RemoteDown, True),
        (answer("503 Service Unavailable", error("SlowDown")), RemoteDown, True),
        (b"garbage\r\n\r\n", RemoteDown, True),
    ],
    ids=lambda value: value[:20].decode().split("\r")[0] if isinstance(value, bytes) else None,
)
def test_responses_become_typed_errors_without_secrets(
    server: Callable[..., Server], response: bytes, error_type: type[RemoteFault], is_transient: bool
) -> None:
    """`is_transient` says whether a retry may help soon."""
    service = server(response)
    store = remote("s3://cache/prefix")

    def look_up() -> object:
        return store.has("ac", KEY)

    calls: list[Callable[[], object]] = [
        lambda: store.put("ac", KEY, b"x", once=True),
        lambda: store.put("ac", KEY, b"x", once=False),
        lambda: store.get("ac", KEY, LIMIT),
        look_up,
    ]
    for call in calls:
        # An answer to HEAD has no body, so it has no error code. The transport treats a 400 without a code as a refusal.
        has_no_code = call is look_up and b"EntityTooLarge" in response
        with pytest.raises(RemoteFault) as caught:
            call()
        fault = caught.value
        assert type(fault) is (RemoteRefused if has_no_code else error_type)
        assert getattr(fault, "is_transient", False) is is_transient
        while fault is not None:
            assert SECRET not in repr(fault) + str(fault) + repr(vars(fault)) and "127.0.0.1" not in str(fault)
            fault = fault.__cause__ or fault.__context__  # type: ignore[assignment]
    assert len(service.requests) == len(calls), "each call makes one attempt"


def test_does_not_replace_an_existing_object(server: Callable[..., Server]) -> None:
    service = server(answer("412 Precondition Failed", error("PreconditionFailed")))
    assert not remote("s3://cache").put("ac", KEY, b"x", once=True)
    assert len(service.requests) == 1


def test_looks_before_it_writes_if_a_service_cannot_write_once(server: Callable[..., Server]) -> None:
    service = server(answer("501 Not Implemented", error("NotImplemented")))
    store = remote("s3://cache")
    assert store.decides_races
    with pytest.raises(RemoteDown):  # the lookup fails, because this server implements nothing
        store.put("ac", KEY, b"x", once=True)
    assert not store.decides_races
    with pytest.raises(RemoteDown):
        store.put("ac", KEY, b"x", once=True)
    assert [request.split()[0] for request in service.requests] == ["PUT", "HEAD", "HEAD"]


def test_sends_no_authorization_header_to_the_target_of_a_redirect(server: Callable[..., Server]) -> None:
    """obstore always follows redirects, and no option prevents this. The target gets a session token, which is useless
    without the secret key. The caller of the transport verifies the received bytes."""
    elsewhere = server(answer("200 OK", b"other bytes"))
    redirecting = server(answer("301 Moved Permanently", more=f"Location: {elsewhere.endpoint}/x\r\n"))
    store = remote("s3://cache")
    assert store.get("ac", KEY, LIMIT) == b"other bytes"
    assert "authorization:" in redirecting.heads[0].lower()
    assert elsewhere.requests
    for head in elsewhere.heads:
        assert "authorization:" not in head.lower()


def test_rejects_a_truncated_body(server: Callable[..., Server]) -> None:
    service = server(answer("200 OK", b"half", length=8))
    with pytest.raises(RemoteDown) as caught:
        remote("s3://cache").get("ac", KEY, LIMIT)
    assert caught.value.is_transient and service.requests


def test_gives_up_a_silent_server(server: Callable[..., Server]) -> None:
    service = server(None)
    store = remote("s3://cache", patience_s=0.3)
    begun = time.monotonic()
    for call in (lambda: store.get("ac", KEY, LIMIT), lambda: store.has("ac", KEY)):
        with pytest.raises(RemoteDown, match="no answer within") as caught:
            call()
        assert not caught.value.is_transient
    assert time.monotonic() - begun < 4.0
    assert len(service.requests) == 2


def test_the_error_names_the_limit_that_an_upload_had(
    server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_UPLOAD_SIZES", (MIN_BYTES_PER_S // 2,))
    service = server(None)
    with pytest.raises(RemoteDown, match=r"no answer within 0\.8 s"):
        remote("s3://cache", patience_s=0.3).put("cas", KEY, b"x", once=True)
    assert len(service.requests) == 1


@pytest.mark.usefixtures("server")  # sets credentials
def test_an_upload_without_a_connection_does_not_wait_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):  # they fill the queue of the listener, so the next connection waits
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(RemoteDown, match=r"no connection within 0\.3 s"):
            remote("s3://cache", patience_s=0.3).put("cas", KEY, b"x", once=True)


def test_the_hint_for_403_names_the_permission_without_which_each_miss_is_403(server: Callable[..., Server]) -> None:
    """S3 answers 404 for a missing object only to users who may list the bucket."""
    service = server(answer("403 Forbidden", error("AccessDenied")))
    store = remote("s3://cache")
    for call in (lambda: store.get("ac", KEY, LIMIT), lambda: store.has("ac", KEY)):
        with pytest.raises(RemoteRefused) as caught:
            call()
        assert "s3:ListBucket" in (caught.value.hint or "")
    assert service.requests


def test_a_few_bytes_per_second_count_as_silence(server: Callable[..., Server]) -> None:
    service = server(answer("200 OK", b"", length=1 << 20), drip=b"x" * 10)
    begun = time.monotonic()
    with pytest.raises(RemoteDown, match="fewer than 8192 bytes"):
        remote("s3://cache", patience_s=0.5).get("ac", KEY, 1 << 20)
    assert time.monotonic() - begun < 5.0 and service.requests


def test_waits_for_slow_but_steady_bytes(server: Callable[..., Server]) -> None:
    service = server(answer("200 OK", b"", length=30_000), drip=b"x" * 1000)  # 20 kB a second
    assert remote("s3://cache", patience_s=0.3).get("ac", KEY, 1 << 20) == b"x" * 30_000
    assert service.requests


def test_a_closed_port_is_down(server: Callable[..., Server]) -> None:
    closed = server(None)
    closed.close()
    store = remote("s3://cache", patience_s=1.0)
    begun = time.monotonic()
    with pytest.raises(RemoteDown) as caught:
        store.has("ac", KEY)
    with pytest.raises(RemoteDown):
        store.put("ac", KEY, b"x", once=True)
    assert not caught.value.is_transient and time.monotonic() - begun < 4.0


@pytest.mark.usefixtures("server")  # sets credentials
def test_an_unknown_host_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://cache.invalid")
    with pytest.raises(RemoteDown, match="not known"):
        remote("s3://cache", patience_s=2.0).has("ac", KEY)


@pytest.mark.parametrize(
    "url", ["s3://id:secret@cache/x", "s3://cache/x?sig=secret", "s3:///x", "http://cache/x", "s3://cache#secret"]
)
def test_rejects_a_url_that_is_not_a_bucket_and_a_prefix(url: str) -> None:
    with pytest.raises(ConfigurationError, match="bucket") as caught:
        remote(url)
    assert "secret" not in str(caught.value)


def test_a_secret_without_a_key_id_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with pytest.raises(ConfigurationError, match="missing access key id") as caught:
        remote("s3://cache")
    assert SECRET not in str(caught.value) and caught.value.__context__ is None


def test_without_credentials_the_hint_names_the_variables(
    server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = server(answer("403 Forbidden"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    # Without credentials, obstore asks the metadata service of the cloud. Here, `service` receives these requests, too.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", service.endpoint)
    with pytest.raises(RemoteRefused, match="no credentials") as caught:
        remote("s3://cache").has("ac", KEY)
    assert "AWS_ACCESS_KEY_ID" in (caught.value.hint or "") and service.requests


@pytest.mark.parametrize("url", ["gs://bucket/prefix", "az://container/prefix"])
def test_opens_the_other_kinds_of_object_stores(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert remote(url).place == url


def test_without_obstore_the_hint_is_the_install_command() -> None:
    code = """
import sys
sys.modules["obstore"] = sys.modules["obstore.store"] = None
from trtbuild.errors import ConfigurationError
from trtbuild.store.transports.kinds import open_transport
from trtbuild.store.transports.settings import RemoteSettings
try:
    open_transport(RemoteSettings("team", "s3://cache"))
except ConfigurationError as error:
    print(error.hint)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert process.stdout == "pip install 'trtbuild[objects]'\n", process.stderr
