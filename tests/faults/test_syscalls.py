"""Kill local operations at each of their writing calls, and operations with a remote at some of theirs
(`tests.faults.enumeration`)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.operations import LARGE, OPERATIONS
from tests.faults.remote_operations import REMOTE_OPERATIONS
from tests.faults.syscalls import traced
from trtbuild.store.collection.check import verify
from trtbuild.store.local.local import LocalStore

#: The largest number of kills for each operation with a remote, evenly spread over its calls. With ``TRTBUILD_KILLS`` of
#: 100 or more, it is killed at all calls.
REMOTE_KILLS = 10**6 if int(os.environ.get("TRTBUILD_KILLS", "16")) >= 100 else 25

#: An operation that puts, builds or replaces must have been killed at each of these calls.
WRITING_CALLS = {"openat", "write", "fsync", "rename", "flock"}


def enumerate_calls(*arguments: str) -> Any:
    """The JSON document of the enumeration, which runs in a process without threads."""
    completed = subprocess.run(
        [sys.executable, "-m", "tests.faults.enumeration", *arguments],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert completed.stdout, completed.stderr[-4000:]
    return json.loads(completed.stdout)


@pytest.mark.parametrize("operation", [*OPERATIONS, *REMOTE_OPERATIONS])
def test_a_kill_at_any_writing_call_leaves_only_complete_files(operation: str) -> None:
    at_most = REMOTE_KILLS if operation in REMOTE_OPERATIONS else 10**6
    document = enumerate_calls("kill", operation, "--at-most", str(at_most))
    (tally,) = document["tallies"]
    assert tally["findings"] == []
    assert tally["calls"] >= 15
    assert document["total"] == min(tally["calls"], at_most), "not every kill was delivered"
    if operation.startswith(("put", "build", "replace")):
        assert tally["delivered"].keys() >= WRITING_CALLS


def test_a_kill_while_several_threads_write_leaves_only_complete_files(tmp_path: Path) -> None:
    """strace counts the calls of each thread separately, so the kill hits a random call of the operation."""

    def put(folder: Path) -> object:
        return LocalStore(folder / "store").put_bytes(LARGE * 3).size

    delivered = 0
    for number, (name, call) in enumerate(
        (name, call) for name in ("write", "fsync", "rename", "openat") for call in (1, 2)
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        LocalStore(folder / "store").put_bytes(b"creates the directories of the store")
        outcome = traced(put, folder, f"{name}:signal=KILL:when={call}")
        assert outcome.killed or outcome.report == {"result": len(LARGE) * 3}
        delivered += outcome.killed
        assert verify(LocalStore(folder / "store")).damage == ()
        assert put(folder) == len(LARGE) * 3
    assert delivered >= 6


def test_the_check_notices_a_damaged_blob_after_a_kill(tmp_path: Path) -> None:
    """The check detects a store that creates a file under the final name before it writes the bytes."""

    def put_badly(folder: Path) -> object:
        path = folder / "store" / "cas" / "ab" / ("ab" * 32)
        path.parent.mkdir()
        path.write_bytes(b"bytes that follow the name")
        return None

    LocalStore(tmp_path / "store").put_bytes(b"creates the directories of the store")
    outcome = traced(put_badly, tmp_path, "write:signal=KILL:when=1")
    assert outcome.killed and outcome.report is None
    assert os.WTERMSIG(outcome.status) == signal.SIGKILL
    assert [call.name for call in outcome.calls] == ["mkdir", "openat", "write"]
    assert len(verify(LocalStore(tmp_path / "store")).damage) == 1
