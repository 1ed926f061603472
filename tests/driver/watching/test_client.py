"""Ctrl-C in a client while a forked copy of the watcher builds for this client, and changes outside the project."""

from __future__ import annotations

import marshal
import socket
from pathlib import Path

import pytest

from trtbuild.driver.project.workspace import Request
from trtbuild.driver.watching import client
from trtbuild.driver.watching.dependencies import Dependencies, identity
from trtbuild.driver.watching.watcher import Watcher


class InterruptedOnce:
    """A connection whose first read is interrupted by Ctrl-C."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._is_interrupted = False

    def recv(self, size: int) -> bytes:
        if not self._is_interrupted:
            self._is_interrupted = True
            raise KeyboardInterrupt
        return self._connection.recv(size)

    def send(self, data: bytes) -> int:
        return self._connection.send(data)


def connected() -> tuple[InterruptedOnce, socket.socket]:
    ours, watcher = socket.socketpair()
    return InterruptedOnce(ours), watcher


def test_ctrl_c_interrupts_the_copy() -> None:
    ours, watcher = connected()
    watcher.send(marshal.dumps(130))
    assert marshal.loads(client._status(ours)) == 130  # type: ignore[arg-type]
    assert watcher.recv(1) == b"i"


def test_ctrl_c_after_the_end_of_the_copy_does_not_hide_its_status() -> None:
    ours, watcher = connected()
    watcher.send(marshal.dumps(0))
    watcher.close()
    assert marshal.loads(client._status(ours)) == 0  # type: ignore[arg-type]


def test_ctrl_c_when_the_watcher_has_ended_ends_the_client() -> None:
    ours, watcher = connected()
    watcher.close()
    with pytest.raises(KeyboardInterrupt):  # otherwise the client would build by itself
        client._status(ours)  # type: ignore[arg-type]


def test_a_change_outside_the_project_is_noticed_once(tmp_path: Path) -> None:
    project, outside = tmp_path / "project", tmp_path / "data.json"
    project.mkdir()
    outside.write_text("1")
    watcher = Watcher(Request(project), [], lambda arguments: 0)
    watcher._dependencies = Dependencies({str(outside): identity(str(outside))}, ())
    for text in ("22", "333"):  # the second change could occur during the build that the first one started
        outside.write_text(text)
        for is_noticed in (True, False):
            watcher._is_changed = False
            watcher._note_outside_changes()
            assert watcher._is_changed is is_noticed


def test_files_outside_the_project_are_watched_until_a_build_succeeds_without_them(tmp_path: Path) -> None:
    watcher = Watcher(Request(tmp_path), [], lambda arguments: 0)
    watched = []
    for names, code, is_changed in (
        ("ab", 0, False),
        ("", 2, False),
        ("c", 1, False),
        ("c", 0, True),
        ("c", 0, False),
        ("", 0, False),
    ):
        watcher._is_changed = is_changed
        watcher._use_report({"outside": dict.fromkeys(names), "written": [], "doubtful": []}, code)
        watched.append("".join(watcher._dependencies.outside))
    assert watched == ["ab", "ab", "abc", "abc", "c", ""]


def test_a_doubtful_file_that_was_not_watched_starts_one_build(tmp_path: Path) -> None:
    watcher = Watcher(Request(tmp_path), [], lambda arguments: 0)
    report = {"outside": {"a": None}, "written": [], "doubtful": ["a"]}
    for expected in (True, False):
        watcher._is_changed = False
        watcher._use_report(report, 0)
        assert watcher._is_changed == expected
