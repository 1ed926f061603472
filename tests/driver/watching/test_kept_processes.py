"""At most three processes with imported libraries stay, and only if the imports leave no thread, process or open file."""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path

import pytest

from tests.driver.watching.libraries import Libraries, is_preloaded
from tests.faults.processes import alive, wait_until_gone
from trtbuild.driver.workers.forking.owner import CAN_FORK_WORKERS
from trtbuild.driver.workers.forking.preloading import MAX_PROCESSES

pytestmark = pytest.mark.skipif(not CAN_FORK_WORKERS, reason="this system cannot fork workers")

#: The first lines of each library. They record the pid of the importing process, as the name of a directory. They call
#: `mkdir` of the C library, because `os.mkdir` raises an audit event, by which trtbuild would notice the change.
NOTE = """\
import ctypes, os
ctypes.CDLL(None).mkdir(f"FOLDER/{os.getpid()}".encode(), 0o700)
"""

#: Library → code that leaves something behind, and an expression that is true while it exists.
LEFT_BEHIND = {
    "with_thread": (
        "import threading, time\nleft = threading.Thread(target=time.sleep, args=(1000,), daemon=True)\nleft.start()\n",
        "left.is_alive()",
    ),
    "with_process": ("import subprocess\nleft = subprocess.Popen(['sleep', 'SECONDS'])\n", "left.poll() is None"),
    "with_file": ("left = open(__file__)\n", "not left.closed"),
    "with_nothing": ("", "True"),
}


def test_three_processes_stay_and_the_least_recently_used_one_ends(tmp_path: Path) -> None:
    watch = Libraries(tmp_path)

    def process(mode: str) -> int:
        """Trace `a` with ``TRTBUILD_MODE`` set. Return the pid of the process that has imported the library."""
        seen, _ = watch.trace("a", TRTBUILD_MODE=mode)
        assert is_preloaded(seen)
        return int(seen["imported by"])

    with watch.running():
        first, second, third = (process(mode) for mode in "123")
        assert len({first, second, third}) == MAX_PROCESSES
        assert process("1") == first
        fourth = process("4")
        wait_until_gone([second])
        assert all(map(alive, (first, third, fourth)))
        assert [process("3"), process("1"), process("4")] == [third, first, fourth]
        assert process("2") not in (first, second, third, fourth)
        wait_until_gone([third])


def test_a_process_does_not_stay_if_a_library_leaves_something_behind(tmp_path: Path) -> None:
    watch = Libraries(tmp_path)
    notes, seconds = tmp_path / "notes", f"1{zlib.crc32(os.fsencode(tmp_path)):010}"  # a number that no other test has
    notes.mkdir()
    for name, (code, is_there) in LEFT_BEHIND.items():
        text = NOTE.replace("FOLDER", str(notes)) + code.replace("SECONDS", seconds)
        watch.install(name, {f"{name}.py": f"{text}def is_there():\n    return {is_there}\n"})
    with watch.running():
        for name in LEFT_BEHIND:
            watch.write("a", f"import sys\nimport library\nimport {name}\n", f"\nassert {name}.is_there()\n")
            seen = [watch.trace("a")[0] for _ in range(2)]
            importers = {int(note.name) for note in notes.iterdir()}
            for note in notes.iterdir():
                note.rmdir()
            if name == "with_nothing":
                assert importers == {each["imported by"] for each in seen}
                assert is_preloaded(seen[0])
                continue
            assert [each["imported by"] for each in seen] == [each["pid"] for each in seen], name
            # one process imported the library for the first build in advance; the second build did not try this again
            (discarded,) = importers - {each["pid"] for each in seen}
            assert not alive(discarded)
            assert _sleeping(seconds) == []  # the library's processes end when the importing process ends


def _sleeping(seconds: str) -> list[int]:
    """The pids of running processes that the library has started."""
    command_line, pids = f"sleep\0{seconds}\0".encode(), []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # the folder is not a process, or the process has ended
            if (folder / "cmdline").read_bytes() == command_line:
                pids.append(int(folder.name))
    return pids
