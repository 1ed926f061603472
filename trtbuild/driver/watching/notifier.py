"""A process that notices changes of files, with the library watchfiles.

The watcher does not load this library, because the library has threads and the watcher forks.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

#: Changes at intervals of less than `STEP_MS` milliseconds are reported together, after at most `DEBOUNCE_MS`.
STEP_MS = 30
DEBOUNCE_MS = 300

#: The name of a temporary file of `trtbuild.atomic`.
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp", re.DOTALL)


class Notifier:
    """Reports changes below `folders`, except below `ignored`.

    `descriptor` is readable after a change, and when the process has ended."""

    def __init__(self, folders: Sequence[Path], ignored: Sequence[Path]) -> None:
        self.folders = tuple(folders)
        command = [sys.executable, "-P", "-m", "trtbuild.driver.watching.notifier"]
        arguments = json.dumps([list(map(str, folders)), list(map(str, ignored))])
        self._process = subprocess.Popen(
            [*command, arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        if self._process.stdout is None:
            raise AssertionError("the notifier has a pipe")
        self.descriptor = self._process.stdout.fileno()
        os.read(self.descriptor, 1)  # from now on, the process notices changes

    def take(self) -> bool:
        """Forget the reported changes. Returns whether the process still runs."""
        return os.read(self.descriptor, 1 << 16) != b""

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def is_relevant(paths: Iterable[str], ignored: Sequence[str], folders: Sequence[str] = ()) -> bool:
    """Whether one of `paths` is outside of ``__pycache__``, ``.git`` and the ignored paths, and no temporary file.

    Only the part of a path below the watched `folders` counts, because a project itself may be below a ``.git``."""
    return any(
        not any(path == folder or path.startswith(folder + os.sep) for folder in ignored)
        and not {"__pycache__", ".git"}.intersection(_parts_below(path, folders))
        and not TEMPORARY.fullmatch(path.rpartition(os.sep)[2])
        for path in paths
    )


def _parts_below(path: str, folders: Sequence[str]) -> Sequence[str]:
    folder = next((folder for folder in folders if path.startswith(folder + os.sep)), "")
    return Path(path[len(folder) :]).parts


def main(arguments: str) -> None:
    """Write a byte at the start, and one after each group of changes, until this process is killed."""
    from watchfiles import Change, watch

    from trtbuild.driver.workers.worker import end_with_parent

    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folders, ignored = json.loads(arguments)

    def relevant(change: Change, path: str) -> bool:
        return is_relevant([path], ignored, folders)

    changes = watch(
        *folders,
        watch_filter=relevant,
        step=STEP_MS,
        debounce=DEBOUNCE_MS,
        rust_timeout=100,
        yield_on_timeout=True,
        ignore_permission_denied=True,
    )
    with contextlib.suppress(BrokenPipeError):
        for number, batch in enumerate(changes):
            if batch or number == 0:  # the first batch shows that watchfiles has begun
                os.write(1, b".")


if __name__ == "__main__":
    main(sys.argv[1])
