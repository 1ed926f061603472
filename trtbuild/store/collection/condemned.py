"""Condemns, hides and removes CAS files of a shared directory that no record names, in three collections.

The first collection *condemns* a file: it notes the time. The second one hides the file, and the third one removes it, or
moves it back. shared_directory.py (rules 3 and 4) explains why.

    gc/condemned            JSON: time (ns) → the names of the files that were condemned at this time
    gc/hidden/<ns>/<name>   a file that was moved out of cas/ at the time <ns>

Only this module writes these files. Invalid content is ignored, because this only delays the removal of CAS files.
"""

# Paths are relative to descriptors here, which pathlib cannot do.
# ruff: noqa: PTH208
from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping

from trtbuild.core.values.encoding import is_digest
from trtbuild.store.collection.retention import Size, size_of
from trtbuild.store.collection.shared_entries import SharedEntries, group_by_folder
from trtbuild.store.transports.shared_folder import SharedFolder, sync_descriptor

_SCHEMA = "trtbuild.condemned/1"

# The number of files that are hidden with the same time. It is small, so that the time is accurate for all of them.
_BATCH_SIZE = 256


class CondemnedFiles:
    """The condemned and the hidden files of a shared directory. Methods raise OSError."""

    def __init__(self, shared: SharedFolder) -> None:
        self._shared = shared
        self._entries = SharedEntries(shared)

    def condemned_times(self, start_ns: int) -> dict[str, int]:
        """The condemned files: name → time (ns).

        `start_ns` is the start of the collection. It replaces a later time, which shows that a clock was wrong.
        """
        try:
            with open(self._shared.open("gc", "condemned"), "rb") as file:
                document = json.loads(file.read())
            times = {
                name: min(int(time), start_ns)
                for time, names in document["since"].items()
                for name in names
                if document["schema"] == _SCHEMA and is_digest(name)
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return {}
        return times

    def write_times(self, times: Mapping[str, int]) -> None:
        """Replace the list of condemned files by `times`: name → time (ns)."""
        names_by_time: dict[str, list[str]] = {}
        for name, time_ns in sorted(times.items()):
            names_by_time.setdefault(str(time_ns), []).append(name)
        text = json.dumps({"schema": _SCHEMA, "since": names_by_time}, separators=(",", ":"))
        self._shared.write(("gc", "condemned"), text.encode())

    def hidden_files(self) -> Iterator[tuple[str, int, Size]]:
        """The name, the time of hiding (ns) and the size of each hidden file."""
        for time_ns in self._hiding_times():
            with (
                contextlib.suppress(FileNotFoundError),
                self._hidden_folder(time_ns) as folder,
                os.scandir(folder) as files,
            ):
                for entry in files:
                    with contextlib.suppress(FileNotFoundError):
                        if is_digest(entry.name):
                            yield entry.name, time_ns, size_of(entry.stat(follow_symlinks=False))

    def hide(self, names: Collection[str], before_ns: int) -> dict[str, Size]:
        """Move these files out of ``cas/``, if their mtime is before `before_ns`. Returns the moved files: name → size."""
        moved: dict[str, Size] = {}
        ordered = sorted(names)
        for start in range(0, len(ordered), _BATCH_SIZE):
            time_ns = self._entries.now_ns()
            self._shared.make("gc", "hidden", str(time_ns))
            with self._hidden_folder(time_ns) as hidden_folder:
                for folder_name, group in group_by_folder(ordered[start : start + _BATCH_SIZE]):
                    with contextlib.suppress(FileNotFoundError), self._shared.folder("cas", folder_name) as folder:
                        for name in group:
                            with contextlib.suppress(FileNotFoundError):
                                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                                if status.st_mtime_ns < before_ns:
                                    os.rename(name, name, src_dir_fd=folder, dst_dir_fd=hidden_folder)
                                    moved[name] = size_of(status)
                        sync_descriptor(folder)
                sync_descriptor(hidden_folder)
        return moved

    def move_back(self, names: Collection[str]) -> set[str]:
        """Move hidden files back to ``cas/``. If a writer has written a file again in the meantime, the hidden file is
        removed. Returns the names of the moved files."""
        restored: set[str] = set()
        for time_ns in self._hiding_times() if names else ():
            with contextlib.suppress(FileNotFoundError), self._hidden_folder(time_ns) as hidden_folder:
                for name in set(os.listdir(hidden_folder)).intersection(names):
                    self._shared.make("cas", name[:2])
                    with self._shared.folder("cas", name[:2]) as folder:
                        with contextlib.suppress(FileNotFoundError):
                            os.stat(name, dir_fd=folder, follow_symlinks=False)
                            os.unlink(name, dir_fd=hidden_folder)
                            continue
                        # This may replace a file that a writer creates at this moment. It has the same bytes.
                        with contextlib.suppress(FileNotFoundError):
                            os.rename(name, name, src_dir_fd=hidden_folder, dst_dir_fd=folder)
                            sync_descriptor(folder)
                            restored.add(name)
        return restored

    def remove(self, before_ns: int, start_ns: int, kept: Collection[str] = ()) -> dict[str, Size]:
        """Remove the files that were hidden before `before_ns`, except `kept`. `start_ns` is the start of the collection.
        It replaces a time of hiding that is too late, because a clock was wrong. Returns the removed files: name → size."""
        removed: dict[str, Size] = {}
        grace_ns = start_ns - before_ns
        for time_ns in self._hiding_times():
            if time_ns > start_ns + grace_ns:  # a clock was wrong
                self._redate(time_ns, start_ns)
            elif time_ns < before_ns:
                with contextlib.suppress(FileNotFoundError), self._hidden_folder(time_ns) as folder:
                    for name in os.listdir(folder):
                        if name not in kept:
                            with contextlib.suppress(FileNotFoundError):
                                size = size_of(os.stat(name, dir_fd=folder, follow_symlinks=False))
                                os.unlink(name, dir_fd=folder)
                                removed[name] = size
                with contextlib.suppress(OSError), self._shared.folder("gc", "hidden") as folder:
                    os.rmdir(str(time_ns), dir_fd=folder)
        return removed

    def _redate(self, time_ns: int, start_ns: int) -> None:
        with contextlib.suppress(OSError), self._shared.folder("gc", "hidden") as folder:
            os.rename(str(time_ns), str(start_ns), src_dir_fd=folder, dst_dir_fd=folder)

    def _hiding_times(self) -> Iterable[int]:
        try:
            with self._shared.folder("gc", "hidden") as folder:
                return sorted(int(name) for name in os.listdir(folder) if name.isascii() and name.isdigit())
        except FileNotFoundError:
            return []

    def _hidden_folder(self, time_ns: int) -> contextlib.AbstractContextManager[int]:
        return self._shared.folder("gc", "hidden", str(time_ns))
