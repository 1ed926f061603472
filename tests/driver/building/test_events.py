"""Watchers receive every event, in order, also when a build fails."""

from __future__ import annotations

import pytest

from trtbuild.driver.building.events import Watcher, Watchers


class FakeWatcher(Watcher):
    """Records the events that it receives."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def opened(self, *_: object) -> None:
        self.told.append("opened")

    def planned(self, *_: object) -> None:
        self.told.append("planned")

    def started(self, *_: object) -> None:
        self.told.append("started")

    def finished(self, *_: object) -> None:
        self.told.append("finished")

    def failed(self, *_: object) -> None:
        self.told.append("failed")

    def phase_started(self, name: str) -> None:
        self.told.append(f"{name} {{")

    def phase_finished(self, name: str) -> None:
        self.told.append(f"}} {name}")

    def close(self) -> None:
        self.told.append("close")


def tell_all(watcher: Watcher) -> None:
    """Every call of the interface, with what a watcher that only writes down does not look at."""
    anything: object = None
    for name in ("planned",):
        getattr(watcher, name)(anything)
    watcher.opened(1, lambda _: None)
    for name in ("started", "finished", "failed"):
        getattr(watcher, name)(*([anything] if name == "started" else [anything, anything]))
    with watcher.phase("plan"):
        pass
    with watcher.work("verify"):
        pass


def test_every_watcher_is_told_everything() -> None:
    one, two = FakeWatcher(), FakeWatcher()
    with Watchers([one, two]) as watcher:
        tell_all(watcher)
    assert one.told == [
        "planned",
        "opened",
        "started",
        "finished",
        "failed",
        "plan {",
        "} plan",
        "verify {",
        "} verify",
        "close",
    ]
    assert two.told == one.told
    public = {name for name in vars(Watcher) if not name.startswith("_")} - {"phase", "work"}
    assert public <= set(vars(Watchers)), "a call that is not passed on"


def test_a_phase_ends_and_a_watcher_is_closed_when_something_goes_wrong() -> None:
    one = FakeWatcher()
    with pytest.raises(ValueError, match="no"), Watchers([one]) as watcher, watcher.phase("plan"):
        raise ValueError("no")
    assert one.told == ["plan {", "} plan", "close"]


def test_the_base_does_nothing() -> None:
    with Watcher() as watcher:
        tell_all(watcher)
