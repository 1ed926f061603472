"""``source.deps``: dependencies of a trace that the manifest declares.

A pattern is a path relative to the project, with ``*``, ``?``, ``[…]`` and ``**``. Each match is a file dependency.
Each directory that was searched is a listing dependency, so that a new match makes the trace stale. A directory stands
for all files below it.
"""

# Paths are strings here: there are thousands of them, and their exact spelling counts.
# ruff: noqa: PTH112, PTH114, PTH208

from __future__ import annotations

import fnmatch
import os
from pathlib import Path

from trtbuild.stages.trace.discovery.recording import Recorder
from trtbuild.stages.trace.user_code.observe import IGNORED_ENTRIES


def add(pattern: str, project: Path, recorder: Recorder) -> None:
    """Record the files and directories that `pattern` names."""
    _expand(os.fspath(project), [part for part in pattern.split("/") if part not in ("", ".")], recorder)


def _expand(directory: str, parts: list[str], recorder: Recorder) -> None:
    if not parts:
        _record_all(directory, recorder)
        return
    head, rest = parts[0], parts[1:]
    if head == "**":
        _expand(directory, rest or ["*"], recorder)
        for name in _entries(directory, recorder):
            path = os.path.join(directory, name)
            if os.path.isdir(path) and not os.path.islink(path):
                _expand(path, parts, recorder)
    elif any(mark in head for mark in "*?["):
        for name in _entries(directory, recorder):
            path = os.path.join(directory, name)
            if fnmatch.fnmatchcase(name, head) and (not rest or os.path.isdir(path)):
                _expand(path, rest, recorder)
    else:
        path = os.path.join(directory, head)
        if rest and not os.path.isdir(path):
            recorder.file(path)  # the directory of the match is missing, or is not a directory
        else:
            _expand(path, rest, recorder)


def _record_all(path: str, recorder: Recorder) -> None:
    if not os.path.isdir(path):
        recorder.file(path)
        return
    for name in _entries(path, recorder):
        _record_all(os.path.join(path, name), recorder)


def _entries(directory: str, recorder: Recorder) -> list[str]:
    recorder.directory(directory)
    try:
        return sorted(name for name in os.listdir(directory) if name not in IGNORED_ENTRIES)
    except OSError:
        return []
