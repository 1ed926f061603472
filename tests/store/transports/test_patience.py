"""Retries and the circuit breaker, with a fake clock and with real threads and servers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest

from tests.store.transports.memory_transport import MemoryTransport
from tests.store.transports.scripted_server import Request, Server
from trtbuild.core.values.codec import encode
from trtbuild.errors import RemoteDown, RemoteFault, RemoteFull, RemoteLied, RemoteRefused
from trtbuild.store.local.layout import Kind
from trtbuild.store.transports.http import HttpTransport
from trtbuild.store.transports.patience import PatientTransport
from trtbuild.store.transports.settings import RemoteSettings
from trtbuild.store.transports.transport import Transport

NAME = "ab" * 32
LIMIT = 1 << 20
#: `BUSY` is an error that is retried. `DEAD` is not retried.
BUSY = RemoteDown("it is busy", is_transient=True)
DEAD = RemoteDown("nothing came for 4 s")

Step = RemoteFault | bytes | None


class Scripted(Transport):
    """A transport whose calls return or raise the `steps` in order. Later calls find no entry.

    A call takes `takes_s` seconds of the fake clock. `put` returns True if its step is None.
    """

    place = "scripted://"
    decides_races = True
    warnings = ("it is a script",)

    def __init__(self, *steps: Step, takes_s: float = 0.0) -> None:
        self.steps = list(steps)
        self.calls = 0
        self.close_calls = 0
        self.now = 0.0
        self.slept: list[float] = []
        self.takes_s = takes_s

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def step(self) -> bytes | None:
        self.calls += 1
        self.now += self.takes_s
        step = self.steps.pop(0) if self.steps else None
        if isinstance(step, RemoteFault):
            raise step
        return step

    def get(self, kind: Kind, name: str, limit: int, *, timed: bool = False) -> bytes | None:
        return self.step()

    def has(self, kind: Kind, name: str) -> bool:
        return self.step() is not None

    def put(self, kind: Kind, name: str, data: bytes | memoryview, *, once: bool) -> bool:
        return self.step() is None

    def close(self) -> None:
        self.close_calls += 1


def patient(*steps: Step, takes_s: float = 0.0, jitter: float = 0.5) -> tuple[PatientTransport, Scripted]:
    """Wrap a scripted transport in a `PatientTransport` with a patience of 4 s. Returns both."""
    script = Scripted(*steps, takes_s=takes_s)
    clock, sleep = script.clock, script.sleep
    return PatientTransport(script, patience_s=4.0, clock=clock, sleep=sleep, jitter=lambda: jitter), script


def get(team: PatientTransport) -> bytes | None:
    return team.get("cas", NAME, LIMIT)


def put(team: PatientTransport) -> bool:
    return team.put("cas", NAME, b"data", once=True)


def assert_circuit_open(
    team: PatientTransport,
    script: Scripted,
    kind: type[RemoteFault] = RemoteDown,
    call: Callable[[PatientTransport], object] = get,
) -> str:
    """Check that the circuit is open: the call fails without a request. Returns the error's text."""
    calls = script.calls
    with pytest.raises(kind) as caught:
        call(team)
    assert script.calls == calls
    return str(caught.value)


def test_works_as_a_transport() -> None:
    memory = MemoryTransport()
    team = PatientTransport(memory)
    assert team.place == memory.place
    assert get(team) is None
    assert not team.has("cas", NAME)
    assert put(team)
    assert not put(team)
    assert team.has("cas", NAME)
    assert get(team) == b"data"
    with pytest.raises(RemoteLied):
        team.get("cas", NAME, 3)
    team.close()


def test_retries_transient_errors() -> None:
    team, script = patient(BUSY, BUSY, b"there")
    assert get(team) == b"there"
    assert script.calls == 3
    assert script.slept == [0.1, 0.4]
    report = team.report()
    assert (report.requests, report.retries, report.failures) == (3, 2, 0)
    assert report.given_up is None
    assert report.troubles == ()


def test_makes_at_most_three_attempts() -> None:
    team, script = patient(b"", BUSY, BUSY, BUSY, b"too late")
    get(team)
    with pytest.raises(RemoteDown, match="busy"):
        get(team)
    assert script.calls == 4
    assert team.report().given_up is None
    assert get(team) == b"too late"


def test_pauses_are_random() -> None:
    for jitter, pauses in ((0.0, [0.0, 0.0]), (1.0, [0.2, 0.8])):
        team, script = patient(BUSY, BUSY, b"", jitter=jitter)
        get(team)
        assert script.slept == pytest.approx(pauses)


def test_does_not_retry_permanent_errors() -> None:
    for fault in (DEAD, RemoteRefused("no"), RemoteLied("hm"), RemoteFull("full")):
        team, script = patient(fault, b"")
        with pytest.raises(type(fault)):
            get(team)
        assert script.calls == 1


def test_follows_retry_after_up_to_two_seconds() -> None:
    team, script = patient(RemoteDown("429", is_transient=True, retry_after_s=2.0), b"there")
    assert get(team) == b"there"
    assert script.slept == [2.0]

    team, script = patient(b"", RemoteDown("429", is_transient=True, retry_after_s=2.1), b"there")
    get(team)
    with pytest.raises(RemoteDown):
        get(team)
    assert script.slept == []
    assert get(team) == b"there", "one such call does not open the circuit"


def test_one_failed_call_gives_up_a_remote_that_never_answered() -> None:
    for fault, attempts in ((DEAD, 1), (BUSY, 3)):
        team, script = patient(*[fault] * attempts, b"too late")
        with pytest.raises(RemoteDown):
            get(team)
        assert script.calls == attempts
        assert "not used" in assert_circuit_open(team, script)
        assert_circuit_open(team, script, call=put)
        assert script.close_calls == 1
        assert not team.is_usable("read")
        assert not team.is_usable("write")


def test_a_timeout_opens_the_circuit_even_after_responses() -> None:
    team, script = patient(b"", DEAD)
    get(team)
    with pytest.raises(RemoteDown, match="nothing came"):
        get(team)
    assert "nothing came" in assert_circuit_open(team, script)


def test_three_failed_calls_in_a_row_open_the_circuit() -> None:
    team, script = patient(b"", *[BUSY] * 6, b"", *[BUSY] * 9, jitter=0.0)
    get(team)
    for _ in range(2):
        with pytest.raises(RemoteDown):
            get(team)
    get(team)
    for _ in range(3):
        assert team.is_usable("read")
        with pytest.raises(RemoteDown):
            get(team)
    assert_circuit_open(team, script)


def test_lost_time_opens_the_circuit_sooner() -> None:
    team, script = patient(b"", BUSY, BUSY, BUSY, takes_s=0.4)
    get(team)
    with pytest.raises(RemoteDown):
        get(team)
    assert_circuit_open(team, script)


def test_gives_up_a_remote_that_answers_only_sometimes() -> None:
    team, script = patient(b"", *[BUSY, BUSY, BUSY, b""] * 100, takes_s=0.3, jitter=0.0)
    failed = 0
    for _ in range(100):
        try:
            get(team)
        except RemoteDown:
            failed += 1
        if not team.is_usable("read"):
            break
    assert 15 < failed < 30
    assert script.now < 30


def test_a_rejected_write_does_not_stop_reads() -> None:
    team, script = patient(RemoteRefused("401", hint="log in"), b"there")
    with pytest.raises(RemoteRefused):
        put(team)
    assert get(team) == b"there"
    assert "log in" in assert_circuit_open(team, script, RemoteRefused, put)
    assert team.is_usable("read")
    assert not team.is_usable("write")
    assert script.close_calls == 0
    assert team.report().given_up == "401"


def test_a_full_remote_stays_in_use() -> None:
    team, _ = patient(*[RemoteFull("413")] * 10)
    for _ in range(10):
        with pytest.raises(RemoteFull):
            put(team)
    assert put(team)
    assert get(team) is None


def test_three_wrong_responses_open_the_circuit() -> None:
    team, script = patient(RemoteLied("html"), b"", b"", b"")
    with pytest.raises(RemoteLied):
        get(team)
    get(team)
    team.count_fault(RemoteLied("wrong digest"))
    assert team.is_usable("read")
    get(team)
    team.count_fault(RemoteLied("wrong digest"))
    assert "sent wrong content 3 times" in assert_circuit_open(team, script)


def test_the_report_counts_requests_bytes_and_failures() -> None:
    team, _ = patient(b"12345", None, BUSY, b"123", RemoteLied("html"), RemoteLied("other"))
    get(team)
    put(team)
    get(team)
    for _ in range(2):
        with pytest.raises(RemoteLied):
            get(team)
    report = encode(team.report())
    assert report == {
        "requests": 6,
        "bytes_down": 8,
        "bytes_up": 4,
        "retries": 1,
        "failures": 2,
        "skipped": 0,
        "given_up": None,
        "troubles": [{"kind": "lied", "text": "html", "hint": None, "count": 2}],
        "warnings": ["it is a script", "html (2 times)"],
    }


def test_one_warning_for_each_kind_of_trouble() -> None:
    team, script = patient(b"", *[RemoteFull("full")] * 3, RemoteRefused("401"), DEAD)
    get(team)
    for _ in range(4):
        with pytest.raises(RemoteFault):
            put(team)
    with pytest.raises(RemoteDown):
        get(team)
    for _ in range(5):
        assert_circuit_open(team, script)
    report = team.report()
    assert [(trouble.kind, trouble.count) for trouble in report.troubles] == [("full", 3), ("refused", 1), ("down", 1)]
    assert report.skipped == 5
    assert report.warnings[-1] == "scripted:// was not used for the rest of the run"
    assert len(report.warnings) == 5


def run_in_threads(call: Callable[[], object], thread_count: int = 16) -> tuple[float, list[RemoteFault]]:
    """Run `call` in several threads at once. Returns the wall time in seconds, and the faults."""
    faults: list[RemoteFault] = []

    def work() -> None:
        try:
            call()
        except RemoteFault as fault:
            faults.append(fault)

    start = time.monotonic()
    threads = [threading.Thread(target=work) for _ in range(thread_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return time.monotonic() - start, faults


def over_http(server_url: str, patience_s: float) -> PatientTransport:
    transport = HttpTransport(RemoteSettings("team", server_url, patience_s=patience_s), {"HOME": "/"})
    return PatientTransport(transport, patience_s)


def test_sixteen_threads_wait_for_one_timeout_of_a_dead_remote() -> None:
    with Server(lambda request: request.stop.wait(60)) as server:
        team = over_http(server.url, patience_s=1.0)
        lost_s, faults = run_in_threads(lambda: get(team))
        assert len(server.requests) == 1, "the other threads waited for the first"
    assert len(faults) == 16
    assert 0.9 < lost_s < 4
    assert team.report().requests == 1


def test_sixteen_threads_give_up_together_when_a_remote_dies() -> None:
    def handler(request: Request) -> bool:
        if request.number == 1:
            return request.reply(404)
        return not request.stop.wait(60)

    with Server(handler) as server:
        team = over_http(server.url, patience_s=3.0)
        get(team)
        waited_s: list[float] = []

        def get_later() -> None:
            time.sleep(1.5)
            start = time.monotonic()
            with pytest.raises(RemoteDown):
                get(team)
            waited_s.append(time.monotonic() - start)

        late = threading.Thread(target=get_later)
        late.start()
        lost_s, faults = run_in_threads(lambda: get(team))
        late.join(60)
        assert len(server.requests) == 18, "the first request, the late request, and a request of each thread"
    assert len(faults) == 16
    assert lost_s < 4.5
    assert waited_s[0] < 2.7, "the late call did not wait for its full patience"


def test_sixteen_threads_at_a_closed_port_share_the_retries() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        team = over_http(f"http://127.0.0.1:{free.getsockname()[1]}", 4.0)
        lost_s, faults = run_in_threads(lambda: put(team))
    assert len(faults) == 16
    assert lost_s < 4
    report = team.report()
    assert report.requests == 3
    assert report.skipped == 15


def test_waiting_retries_end_when_the_circuit_opens() -> None:
    with Server(lambda request: request.reply(404 if request.number == 1 else 503, Retry_After="2")) as server:
        team = over_http(server.url, patience_s=4.0)
        get(team)
        threading.Timer(0.3, lambda: [team.count_fault(RemoteLied("x")) for _ in range(3)]).start()
        lost_s, faults = run_in_threads(lambda: get(team), thread_count=4)
        assert len(server.requests) >= 2
    assert len(faults) == 4
    assert lost_s < 1.8


def test_a_transport_may_learn_from_a_write_that_it_does_not_decide_races() -> None:
    class Learns(Scripted):
        def put(self, *_: object, **__: object) -> bool:
            self.decides_races = False
            return True

    patient = PatientTransport(Learns())
    assert patient.decides_races
    assert patient.put("ac", NAME, b"x", once=True)
    assert not patient.decides_races
