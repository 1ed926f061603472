"""``source.deps``: the dependencies that the manifest declares for a trace.

A pattern is a path relative to the project. It may contain the wildcards ``*``, ``?``, ``[…]`` and ``**``. Each file that
matches is a dependency. If a directory matches, all files below it are dependencies, except entries whose names are in
`IGNORED_ENTRIES`. The list of names in each searched directory is a dependency, too: when a new file appears there, the
trace runs again. If symbolic links lead the search back to a directory that it came through, the search ends there, and
these links are dependencies.
"""

# Paths are strings here: there are thousands of them, and their exact spelling counts.
# ruff: noqa: PTH112, PTH114, PTH208

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping
from pathlib import Path

from trtbuild.stages.trace.discovery.recording import Recorder
from trtbuild.stages.trace.user_code.observe import IGNORED_ENTRIES


def record_matches(pattern: str, project: Path, recorder: Recorder) -> None:
    """Record the files that match `pattern`, and the directories that are searched."""
    _expand(os.fspath(project), [part for part in pattern.split("/") if part not in ("", ".")], recorder)


def _expand(directory: str, parts: list[str], recorder: Recorder) -> None:
    if not parts:
        _record_all(directory, recorder, {})
        return
    first_part, other_parts = parts[0], parts[1:]
    if first_part == "**":
        _expand(directory, other_parts or ["*"], recorder)
        for name in _entries(directory, recorder):
            path = os.path.join(directory, name)
            if os.path.isdir(path) and not os.path.islink(path):
                _expand(path, parts, recorder)
    elif any(wildcard in first_part for wildcard in "*?["):
        for name in _entries(directory, recorder):
            path = os.path.join(directory, name)
            if fnmatch.fnmatchcase(name, first_part) and (not other_parts or os.path.isdir(path)):
                _expand(path, other_parts, recorder)
    else:
        path = os.path.join(directory, first_part)
        if other_parts and not os.path.isdir(path):
            recorder.record_file(path)  # no file can match: `path` does not exist, or is not a directory
        else:
            _expand(path, other_parts, recorder)


def _record_all(path: str, recorder: Recorder, parents: Mapping[str, str]) -> None:
    """Record all files below `path`. `parents` are the directories above it in this search: real path → path."""
    if not os.path.isdir(path):
        recorder.record_file(path)
        return
    names, real_path = _entries(path, recorder), os.path.realpath(path)
    if real_path in parents:  # a loop of links
        for each_path in (*parents.values(), path):
            recorder.record_link(each_path)
        return
    for name in names:
        _record_all(os.path.join(path, name), recorder, {**parents, real_path: path})


def _entries(directory: str, recorder: Recorder) -> list[str]:
    recorder.record_listing(directory)
    try:
        return sorted(name for name in os.listdir(directory) if name not in IGNORED_ENTRIES)
    except OSError:
        return []
