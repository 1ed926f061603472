"""Servers that misbehave, and servers that are only slow."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.store.transports.scripted_server import Request, Server
from trtbuild.errors import RemoteDown, RemoteFault, RemoteFull, RemoteLied, RemoteRefused
from trtbuild.store.transports.http import HttpTransport
from trtbuild.store.transports.settings import RemoteSettings

NAME = "ab" * 32
LIMIT = 1 << 20
PATIENCE_S = 0.4
#: A call must fail within this time. It is far longer than the patience, because the machine may have other load.
SOON_S = 5.0


def remote(url: str, patience_s: float = PATIENCE_S, **environment: str) -> HttpTransport:
    return HttpTransport(RemoteSettings("team", url, patience_s=patience_s), {"HOME": "/nonexistent", **environment})


def assert_fails(error_type: type[RemoteFault], call: Callable[[], object]) -> Any:
    """Check that `call` soon raises an `error_type` without a cause (rule 2 of http.py). Returns the error."""
    begun = time.monotonic()
    with pytest.raises(error_type) as caught:
        call()
    assert time.monotonic() - begun < SOON_S
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    return caught.value


def never_answer(request: Request) -> None:
    request.stop.wait(30)


def test_a_refused_port_is_down() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, but not listening
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        fault = assert_fails(RemoteDown, lambda: remote(url).get("cas", NAME, LIMIT))
    assert "no server listens" in str(fault)
    assert fault.is_transient


def test_a_listener_that_never_accepts_is_down() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        fault = assert_fails(
            RemoteDown, lambda: remote(f"http://127.0.0.1:{listener.getsockname()[1]}").has("cas", NAME)
        )
        assert listener.accept(), "the client has connected"
    assert "nothing came" in str(fault)
    assert not fault.is_transient


@pytest.mark.parametrize("method", ["get", "has", "put"])
def test_a_server_that_never_answers_is_down(method: str) -> None:
    with Server(never_answer) as server:
        team = remote(server.url)
        calls = {
            "get": lambda: team.get("cas", NAME, LIMIT),
            "has": lambda: team.has("cas", NAME),
            "put": lambda: team.put("cas", NAME, b"x" * 1000, once=True),
        }
        fault = assert_fails(RemoteDown, calls[method])
        assert [request.method for request in server.requests] == [{"get": "GET", "has": "HEAD", "put": "PUT"}[method]]
    assert not fault.is_transient


def test_a_body_that_comes_byte_by_byte_fails() -> None:
    sent = 0

    def drip(request: Request) -> None:
        nonlocal sent
        request.reply(200, b"", length=1000)
        while not request.stop.wait(0.05):
            request.sock.sendall(b"x")
            sent += 1

    with Server(drip) as server:
        fault = assert_fails(RemoteDown, lambda: remote(server.url).get("cas", NAME, LIMIT))
    assert 0 < sent < 1000
    assert "hardly anything came" in str(fault)


def test_a_head_that_comes_byte_by_byte_fails() -> None:
    sent = 0

    def drip(request: Request) -> None:
        nonlocal sent
        for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n" + b"X: y\r\n" * 10_000:
            if request.stop.wait(0.02):
                return
            request.sock.sendall(bytes([byte]))
            sent += 1

    with Server(drip) as server:
        assert_fails(RemoteDown, lambda: remote(server.url).get("cas", NAME, LIMIT))
    assert 0 < sent < 10_000


def test_a_late_response_with_a_hanging_body_does_not_double_the_patience() -> None:
    def answer_late(request: Request) -> None:
        time.sleep(1.6)
        request.reply(200, b"", length=100_000)
        never_answer(request)

    with Server(answer_late) as server:
        begun = time.monotonic()
        assert_fails(RemoteDown, lambda: remote(server.url, patience_s=2.0).get("cas", NAME, LIMIT))
        assert time.monotonic() - begun < 3.3, "the patience must not begin again with the body"
        assert len(server.requests) == 1


def test_a_slow_but_steady_line_does_not_fail() -> None:
    def steady(request: Request) -> bool:
        request.reply(200, b"", length=40_000)
        for _ in range(40):
            time.sleep(0.05)
            request.sock.sendall(b"x" * 1000)
        return True

    with Server(steady) as server:
        begun = time.monotonic()
        assert remote(server.url, patience_s=0.8).get("cas", NAME, LIMIT) == b"x" * 40_000
        assert time.monotonic() - begun > 1.6, "the line was slow"


def test_connections_that_share_a_slow_line_do_not_fail() -> None:
    line = threading.Lock()  # 20 KB/s for all connections together

    def reply_slowly(request: Request) -> bool:
        request.reply(200, b"", length=6000)
        for _ in range(12):
            with line:
                time.sleep(0.025)
                request.sock.sendall(b"x" * 500)
            time.sleep(0)  # let other threads take the lock
        return True

    bodies: list[bytes | None] = []
    with Server(reply_slowly) as server:
        team = remote(server.url, patience_s=0.6)
        threads = [threading.Thread(target=lambda: bodies.append(team.get("cas", NAME, LIMIT))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert bodies == [b"x" * 6000] * 8


def test_an_upload_over_a_slow_but_steady_line_does_not_fail() -> None:
    data, received = b"u" * 150_000, 0

    def slow(request: Request) -> bool:
        nonlocal received
        received = len(request.start_of_body)
        while received < len(data):
            time.sleep(0.04)
            received += len(request.sock.recv(4096))
        return request.reply(201)

    with Server(slow, receive_buffer=8192) as server:
        begun = time.monotonic()
        assert remote(server.url, patience_s=0.8).put("cas", NAME, data, once=True)
        assert time.monotonic() - begun > 1.2, "the line was slow"
    assert received == len(data)


def test_uploads_that_share_a_slow_line_do_not_fail() -> None:
    size = 40_000

    def receive_slowly(request: Request) -> bool:
        received = len(request.start_of_body)
        while received < size:
            time.sleep(0.2)  # so each of the four uploads gets 10 KB/s
            received += len(request.sock.recv(2000))
        return request.reply(201)

    results: list[bool] = []
    with Server(receive_slowly, receive_buffer=4096) as server:
        team = remote(server.url, patience_s=0.8)
        threads = [
            threading.Thread(target=lambda: results.append(team.put("cas", NAME, b"u" * size, once=True)))
            for _ in range(4)
        ]
        begun = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - begun > 1.6, "the line was slow"
    assert results == [True] * 4


def test_an_unread_upload_fails() -> None:
    with Server(never_answer, receive_buffer=4096) as server:
        assert_fails(RemoteDown, lambda: remote(server.url).put("cas", NAME, b"u" * LIMIT, once=True))
        assert [request.method for request in server.requests] == ["PUT"]


def test_an_upload_without_a_response_fails() -> None:
    body_read = threading.Event()

    def swallow(request: Request) -> None:
        assert len(request.body()) == LIMIT
        body_read.set()
        never_answer(request)

    with Server(swallow) as server:
        assert_fails(RemoteDown, lambda: remote(server.url).put("cas", NAME, b"u" * LIMIT, once=True))
    assert body_read.is_set()


def test_rejects_a_page_of_html() -> None:
    with Server(lambda request: request.reply(200, b"<html>log in", Content_Type="text/html; charset=utf-8")) as server:
        assert "HTML" in str(assert_fails(RemoteLied, lambda: remote(server.url).get("cas", NAME, LIMIT)))
        assert_fails(RemoteLied, lambda: remote(server.url).has("cas", NAME))
        assert len(server.requests) == 2


def test_a_truncated_body_fails() -> None:
    with Server(lambda request: not request.reply(200, b"short", length=500)) as server:
        fault = assert_fails(RemoteDown, lambda: remote(server.url).get("cas", NAME, LIMIT))
        assert len(server.requests) == 1
    assert fault.is_transient
    assert "5 of 500" in str(fault)


def test_does_not_read_a_body_with_a_too_large_content_length() -> None:
    with Server(lambda request: request.reply(200, b"x" * 10, length=LIMIT + 1)) as server:
        assert_fails(RemoteLied, lambda: remote(server.url).get("cas", NAME, LIMIT))
        assert len(server.requests) == 1


@pytest.mark.parametrize("chunked", [True, False])
def test_stops_reading_an_endless_body(chunked: bool) -> None:
    sent = 0

    def endless(request: Request) -> None:
        nonlocal sent
        request.sock.sendall(b"HTTP/1.1 200 OK\r\n" + (b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"\r\n"))
        while not request.stop.is_set():
            request.sock.sendall(b"1000\r\n" + b"x" * 0x1000 + b"\r\n" if chunked else b"x" * 0x1000)
            sent += 0x1000

    with Server(endless) as server:
        assert_fails(RemoteLied, lambda: remote(server.url, patience_s=4).get("cas", NAME, LIMIT))
    assert sent > LIMIT // 2


def test_reads_chunked_bodies_and_bodies_without_a_length() -> None:
    def chunks(request: Request) -> bool:
        if request.path.endswith("/ac/" + NAME):
            request.sock.sendall(b"HTTP/1.1 200 OK\r\n\r\nto the end")
            return False
        request.sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        return True

    with Server(chunks) as server:
        team = remote(server.url)
        assert [team.get("cas", NAME, LIMIT) for _ in range(3)] == [b"abcde"] * 3
        assert server.connections == 1
        assert team.get("ac", NAME, LIMIT) == b"to the end"
        assert team.get("cas", NAME, 5) == b"abcde"


def test_a_truncated_chunked_body_fails() -> None:
    def chunks(request: Request) -> None:
        request.sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n50\r\nabc")

    with Server(chunks) as server:
        assert assert_fails(RemoteDown, lambda: remote(server.url).get("cas", NAME, LIMIT)).is_transient
        assert len(server.requests) == 1


# The errors of reading and of writing. None stands for no error.
@pytest.mark.parametrize(
    ("status", "read_error", "write_error"),
    [
        (200, None, None),
        (201, RemoteDown, None),
        (204, RemoteDown, None),
        (400, RemoteRefused, RemoteRefused),
        (401, RemoteRefused, RemoteRefused),
        (403, RemoteRefused, RemoteRefused),
        (404, None, RemoteRefused),
        (405, RemoteRefused, RemoteRefused),
        (408, RemoteDown, RemoteDown),
        (409, RemoteRefused, None),
        (410, None, RemoteRefused),
        (412, RemoteRefused, None),
        (413, RemoteRefused, RemoteFull),
        (429, RemoteDown, RemoteDown),
        (500, RemoteDown, RemoteDown),
        (501, RemoteRefused, RemoteRefused),
        (502, RemoteDown, RemoteDown),
        (503, RemoteDown, RemoteDown),
        (507, RemoteDown, RemoteFull),
    ],
)
def test_the_effect_of_each_status(
    status: int, read_error: type[RemoteFault] | None, write_error: type[RemoteFault] | None
) -> None:
    def handler(request: Request) -> bool:
        request.body()
        if status == 204:  # such a response has no body and no length
            request.sock.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
            return True
        return request.reply(status, b"the body", Retry_After="7")

    with Server(handler) as server:
        team = remote(server.url)
        if read_error is None:
            assert team.get("cas", NAME, LIMIT) == (b"the body" if status == 200 else None)
            assert team.has("cas", NAME) == (status == 200)
        else:
            fault = assert_fails(read_error, lambda: team.get("cas", NAME, LIMIT))
            assert str(status) in fault.text
            if isinstance(fault, RemoteDown) and status >= 400:
                assert fault.is_transient
                assert fault.retry_after_s == 7
        if write_error is None:
            is_written = team.put("cas", NAME, b"data", once=True)
            assert is_written == (status < 300), "409 and 412 mean that the entry exists"
        else:
            assert str(status) in assert_fails(write_error, lambda: team.put("cas", NAME, b"data", once=True)).text
        assert {request.method for request in server.requests} >= {"GET", "PUT"}
        assert server.connections == 1, "an answer that is an error does not close the connection"


def test_a_401_error_names_the_sources_of_credentials() -> None:
    with Server(lambda request: request.reply(401)) as server:
        fault = assert_fails(RemoteRefused, lambda: remote(server.url).get("ac", NAME, LIMIT))
    assert "TRTBUILD_REMOTE_TEAM_TOKEN" in str(fault)
    assert "netrc" in str(fault)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("3", 3.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("soon", None), ("-1", None), ("9" * 400, 999999999.0)],
)
def test_parses_retry_after(value: str, seconds: float | None) -> None:
    with Server(lambda request: request.reply(503, Retry_After=value)) as server:
        assert assert_fails(RemoteDown, lambda: remote(server.url).has("ac", NAME)).retry_after_s == seconds


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_does_not_follow_a_redirect_to_another_server(status: int) -> None:
    with Server(lambda request: request.reply(200, b"stolen")) as thief:
        location = thief.url.replace("http://", "http://someone:hunter2@") + "/cas/x?token=hunter2"
        with Server(lambda request: request.body() is not None and request.reply(status, Location=location)) as server:
            team = remote(server.url.replace("http://", "http://me:secret@"))
            fault = assert_fails(RemoteRefused, lambda: team.get("cas", NAME, LIMIT))
            assert_fails(RemoteRefused, lambda: team.has("cas", NAME))
            assert_fails(RemoteRefused, lambda: team.put("cas", NAME, b"x", once=True))
            assert len(server.requests) == 3
        assert thief.connections == 0
    assert "hunter2" not in str(fault)


@pytest.mark.parametrize("location", ["https://127.0.0.1:{port}/x", "//localhost:{port}/x", "ftp://a/b", "http://[bad"])
def test_does_not_follow_a_redirect_to_another_origin(location: str) -> None:
    with Server(lambda request: request.reply(302, Location=location.format(port=server.port))) as server:
        assert_fails(RemoteRefused, lambda: remote(server.url).get("cas", NAME, LIMIT))
        assert len(server.requests) == 1


def test_follows_a_redirect_within_the_origin() -> None:
    def handler(request: Request) -> bool:
        body = request.body()
        if not request.path.startswith("/moved"):
            return request.reply(307, Location=f"/moved{request.path}")
        return request.reply(200, body or b"here")

    with Server(handler) as server:
        team = remote(server.url.replace("http://", "http://me:secret@"))
        assert team.get("cas", NAME, LIMIT) == b"here"
        assert team.put("cas", NAME, b"data", once=True)
        assert [request.path for request in server.requests] == [f"/cache/cas/{NAME}", f"/moved/cache/cas/{NAME}"] * 2
        assert all("authorization" in request.headers for request in server.requests)
        assert server.connections == 1


@pytest.mark.parametrize("location", [f"/cache/cas/{NAME}", ""])
def test_stops_at_circular_redirects(location: str) -> None:
    with Server(lambda request: request.reply(302, Location=location)) as server:
        assert "circles" in str(assert_fails(RemoteRefused, lambda: remote(server.url).get("cas", NAME, LIMIT)))
        assert len(server.requests) == 4, "the first request, and three redirects"


def reset(sock: socket.socket) -> None:
    """Close a connection with a TCP reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # on, with a wait of 0 s
    sock.close()


def test_a_reset_during_a_download_fails() -> None:
    def handler(request: Request) -> None:
        request.reply(200, b"x" * 1000, length=LIMIT)
        time.sleep(0.05)
        reset(request.sock)

    with Server(handler) as server:
        assert assert_fails(RemoteDown, lambda: remote(server.url).get("cas", NAME, LIMIT)).is_transient
        assert len(server.requests) == 1


def test_a_reset_during_an_upload_fails() -> None:
    def handler(request: Request) -> None:
        request.sock.recv(1000)
        reset(request.sock)

    with Server(handler, receive_buffer=4096) as server:
        assert assert_fails(
            RemoteDown, lambda: remote(server.url).put("cas", NAME, b"u" * 8 * LIMIT, once=True)
        ).is_transient
        assert len(server.requests) == 1


def test_understands_a_rejection_before_the_upload_was_read() -> None:
    def handler(request: Request) -> bool:
        request.reply(413)
        time.sleep(0.2)
        return False  # closing with unread bytes causes a reset

    with Server(handler, receive_buffer=4096) as server:
        assert_fails(RemoteFull, lambda: remote(server.url).put("cas", NAME, b"u" * 8 * LIMIT, once=True))
        assert len(server.requests) == 1


def test_does_not_reuse_a_connection_after_an_incomplete_upload() -> None:
    def handler(request: Request) -> bool:
        request.reply(409)
        request.stop.wait(3)  # the connection stays open, but nothing is read
        return False

    with Server(handler, receive_buffer=4096) as server:
        team = remote(server.url)
        for _ in range(2):
            assert not team.put("cas", NAME, b"u" * 8 * LIMIT, once=True)
        assert server.connections == 2


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH_9.2p1\r\n",
        b"\0\1\2\3" * 30_000,
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"y" * 70_000,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabcdef\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n" + b"T: u\r\n" * 300_000,
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"",
    ],
    ids=[
        "ssh",
        "binary",
        "status",
        "long line",
        "many headers",
        "continue",
        "chunk",
        "minus five",
        "minus one",
        "chunk length",
        "trailers",
        "switch",
        "nothing",
    ],
)
def test_an_invalid_response_fails(garbage: bytes) -> None:
    def handler(request: Request) -> None:
        request.sock.sendall(garbage)

    with Server(handler) as server:
        assert_fails(RemoteDown, lambda: remote(server.url).get("cas", NAME, LIMIT))
        assert len(server.requests) == 1


def test_ignores_an_unrequested_100_continue() -> None:
    def handler(request: Request) -> bool:
        request.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.body()
        return request.reply(201)

    with Server(handler) as server:
        assert remote(server.url).put("cas", NAME, b"data", once=True)
        assert len(server.requests) == 1


@pytest.mark.parametrize("method", ["GET", "PUT"])
@pytest.mark.parametrize("when", ["between requests", "on the next request"])
def test_replaces_a_closed_connection_silently(method: str, when: str) -> None:
    closed = threading.Event()

    def handler(request: Request) -> bool:
        if request.number_on_connection > 1:
            closed.set()
            reset(request.sock)
            return False
        request.body()
        request.reply(200, b"fine")
        if when == "between requests":
            request.sock.shutdown(socket.SHUT_RDWR)
            closed.set()
            return False
        return True

    with Server(handler) as server:
        team = remote(server.url)
        for _ in range(3):
            if method == "GET":
                assert team.get("cas", NAME, LIMIT) == b"fine"
            else:
                assert team.put("cas", NAME, b"data", once=True)
            if when == "between requests":
                assert closed.wait(5)
                closed.clear()
        assert server.connections == 3
        if when == "on the next request":
            assert closed.is_set(), "the server has reset a connection"


def test_does_not_retry_a_new_connection_that_breaks() -> None:
    with Server(lambda request: False) as server:
        assert assert_fails(RemoteDown, lambda: remote(server.url).get("cas", NAME, LIMIT)).is_transient
        assert len(server.requests) == 1


def test_ignores_unrequested_bytes_after_a_response() -> None:
    def handler(request: Request) -> bool:
        request.reply(200, b"good")
        request.sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        return True

    with Server(handler) as server:
        team = remote(server.url)
        for _ in range(3):
            assert team.get("cas", NAME, LIMIT) == b"good"
            time.sleep(0.05)  # so that the unrequested bytes arrive before the next request
        assert len(server.requests) == 3


def test_does_not_wait_for_the_slow_body_of_an_error() -> None:
    def handler(request: Request) -> None:
        request.reply(404, b"x", length=1000)
        never_answer(request)

    with Server(handler) as server:
        begun = time.monotonic()
        assert remote(server.url, patience_s=4).get("cas", NAME, LIMIT) is None
        assert time.monotonic() - begun < 3
        assert len(server.requests) == 1


def test_an_unknown_host_name_is_down_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = []

    def resolve(host: str, *_: object, **__: object) -> Any:
        lookups.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    team = remote("http://cache.example")
    for _ in range(2):
        assert "cache.example is not known" in str(assert_fails(RemoteDown, lambda: team.get("cas", NAME, LIMIT)))
    assert lookups == ["cache.example"], "the answer is remembered"


def test_a_hanging_resolver_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    called, may_continue = threading.Event(), threading.Event()

    def resolve(*_: object, **__: object) -> Any:
        called.set()
        may_continue.wait(30)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    fault = assert_fails(RemoteDown, lambda: remote("http://cache.example").get("cas", NAME, LIMIT))
    assert called.is_set()
    assert not fault.is_transient
    may_continue.set()


def test_tries_the_next_address_if_one_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as dead, Server(lambda request: request.reply(200, b"fine")) as server:
        dead.bind(("127.0.0.1", 0))  # bound, but not listening
        addresses = [
            (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address)
            for address in (dead.getsockname(), ("127.0.0.1", server.port))
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
        team = remote("http://cache.example")
        assert team.get("cas", NAME, LIMIT) == b"fine"
        assert server.requests[0].headers["host"] == "cache.example"


def test_close_ends_pending_requests_of_other_threads() -> None:
    faults: list[RemoteDown] = []

    def ask(team: HttpTransport) -> None:
        with pytest.raises(RemoteDown) as caught:
            team.get("cas", NAME, LIMIT)
        faults.append(caught.value)

    with Server(never_answer) as server:
        team = remote(server.url, patience_s=30)
        threads = [threading.Thread(target=ask, args=(team,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 10
        while len(server.requests) < 4 and time.monotonic() < end:
            time.sleep(0.01)
        begun = time.monotonic()
        team.close()
        for thread in threads:
            thread.join(10)
        assert time.monotonic() - begun < SOON_S
        assert len(server.requests) == 4
    assert len(faults) == 4
    assert_fails(RemoteDown, lambda: team.get("cas", NAME, LIMIT))
