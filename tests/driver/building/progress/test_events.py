"""Watchers receive every event, in order, also when a build fails."""

from __future__ import annotations

from typing import Any

import pytest

from trtbuild.driver.building.progress.events import Watcher, Watchers


class FakeWatcher(Watcher):
    """Records the events that it receives."""

    def __init__(self) -> None:
        self.received: list[str] = []

    def build_started(self, *_: object) -> None:
        self.received.append("build_started")

    def model_planned(self, *_: object) -> None:
        self.received.append("model_planned")

    def step_started(self, *_: object) -> None:
        self.received.append("step_started")

    def step_finished(self, *_: object) -> None:
        self.received.append("step_finished")

    def step_failed(self, *_: object) -> None:
        self.received.append("step_failed")

    def warned(self, *_: object) -> None:
        self.received.append("warned")

    def phase_started(self, name: str) -> None:
        self.received.append(f"{name} {{")

    def phase_finished(self, name: str, *, succeeded: bool) -> None:
        self.received.append(f"}} {name}" if succeeded else f"}} {name} failed")

    def outputs_written(self, *_: object) -> None:
        self.received.append("outputs_written")

    def build_finished(self, *_: object) -> None:
        self.received.append("build_finished")

    def build_stopped(self, *_: object) -> None:
        self.received.append("build_stopped")

    def close(self) -> None:
        self.received.append("close")


def send_all_events(watcher: Watcher) -> None:
    """Send every event except `close`."""
    ignored: Any = None  # the watchers of these tests ignore this argument
    watcher.model_planned(ignored)
    watcher.build_started(1, lambda _: None)
    watcher.step_started(ignored)
    watcher.step_finished(ignored, ignored)
    watcher.step_failed(ignored, ignored)
    watcher.warned(ignored)
    with watcher.phase("plan"):
        pass
    with watcher.work("verify"):
        pass
    watcher.outputs_written(ignored)
    watcher.build_finished(ignored)
    watcher.build_stopped(ignored)


def test_every_watcher_receives_every_event() -> None:
    first, second = FakeWatcher(), FakeWatcher()
    with Watchers([first, second]) as watcher:
        send_all_events(watcher)
    assert first.received == [
        "model_planned",
        "build_started",
        "step_started",
        "step_finished",
        "step_failed",
        "warned",
        "plan {",
        "} plan",
        "verify {",
        "} verify",
        "outputs_written",
        "build_finished",
        "build_stopped",
        "close",
    ]
    assert second.received == first.received
    public = {name for name in vars(Watcher) if not name.startswith("_")} - {"phase", "work"}
    assert public <= set(vars(Watchers)), "Watchers passes on every event"


def test_after_an_exception_phases_end_and_watchers_are_closed() -> None:
    first = FakeWatcher()
    with pytest.raises(ValueError, match="no"), Watchers([first]) as watcher, watcher.phase("plan"):
        raise ValueError("no")
    assert first.received == ["plan {", "} plan failed", "build_stopped", "close"]


def test_the_base_class_ignores_every_event() -> None:
    with Watcher() as watcher:
        send_all_events(watcher)
