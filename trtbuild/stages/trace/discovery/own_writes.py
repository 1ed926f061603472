"""The files and directories that the process of a trace has changed itself.

A file that the process has written is not a dependency. If the process has read or looked up the file before, the trace is
not cacheable (rule 2 of `recording`). A path is stored together with its target, because another path may lead there.
"""

from __future__ import annotations

import os

from trtbuild.stages.trace.discovery.paths import path_and_target


class OwnWrites:
    """The absolute paths that this process wrote, and questions about them. Any thread may add a path."""

    def __init__(self) -> None:
        #: Files that this process wrote, created or removed, or to which it renamed a file.
        self._files: set[str] = set()
        #: Files that this process opened to append to them.
        self._appended: set[str] = set()
        #: Directories that this process created.
        self._directories: set[str] = set()
        #: Files of databases that this process opened. Their library writes without an audit event.
        self._databases: set[str] = set()

    def add_file(self, path: str) -> None:
        self._files.update(path_and_target(path))

    def add_appended(self, path: str) -> None:
        self._appended.update(path_and_target(path))

    def add_directory(self, path: str) -> None:
        self._directories.update(path_and_target(path))

    def add_database_file(self, path: str) -> None:
        self._databases.update(path_and_target(path))

    @property
    def files(self) -> list[str]:
        """A copy, because threads of user code may still add files."""
        return list(self._files)

    @property
    def file_count(self) -> int:
        return len(self._files)

    def has_written(self, path: str) -> bool:
        return path in self._files

    def has_appended(self, path: str) -> bool:
        return path in self._appended

    def has_created_directory(self, path: str) -> bool:
        return path in self._directories

    def is_database_file(self, path: str) -> bool:
        return path in self._databases

    def may_have_changed(self, path: str) -> bool:
        """Whether this process wrote the file, or may have written it, because the file belongs to a database."""
        changeable = self._files | self._databases
        return path in changeable or os.path.realpath(path) in changeable

    def has_changed_entries(self, directory: str) -> bool:
        """Whether this process wrote, created or removed an entry of `directory`."""
        return any(os.path.dirname(path) == directory for path in self.files)
