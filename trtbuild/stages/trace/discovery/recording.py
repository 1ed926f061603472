"""What user code looked at, in the order of first use, and whether it stayed as it was seen.

Rules
1. A dependency is pinned when it is first met: by its digest where one is at hand or where the file changed a moment ago
   (its times could not show another change), else by size, times and inode. At the end everything is observed again;
   what differs from its pin changed during the trace.
2. What this process itself wrote before it read it is no dependency. What it looked at first and then made, or wrote over,
   cannot be recorded: such a trace is not cacheable (a second one, which finds the file made, is).
3. Paths are posix; inside the project relative to it, else absolute. A path that leads elsewhere through a symlink is
   recorded as it was opened and as where it led. A link that is read by itself (``Path.resolve``) is a link.
4. Of a variable counts what this process started with, whatever torch or the model has set meanwhile: nobody else can
   change it, and the next build compares that. What user code set before it read it is its own, as in rule 2.
5. What belongs to a distribution is recorded as the distribution; Python, trtbuild and `places.IGNORED` not at all.
"""

# Paths are strings here: they come by the thousand, and count in the spelling in which they were used.
# ruff: noqa: PTH100, PTH116

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trtbuild.core.recipes.dependency import ABSENT, DIRECTORY, Dependency, Observation
from trtbuild.errors import SourceError
from trtbuild.stages.trace.user_code.observe import SPECIAL, environment_digest, file_digest, link, listing, observe
from trtbuild.stages.trace.user_code.places import DISTRIBUTIONS, Places

#: A file that changed less than this before it was read may change again without a trace in its times.
_GRANULARITY_S = 2.0


#: What whoever starts a trace sets for it (`trtbuild.driver.workers.pool`): the same in every trace.
STARTERS_VARIABLES = frozenset({"CUDA_VISIBLE_DEVICES", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE"})


class Recorder:
    """Collects dependencies. Its methods are called from hooks, in any thread, and never raise."""

    def __init__(self, project: Path, places: Places, environment: Mapping[str, str]) -> None:
        """`environment` are the variables that this process started with."""
        self.places = places
        #: Reasons why the result must not be kept, in the order in which they were met.
        self.reasons: list[str] = []
        self._project = os.fspath(project)
        self._environment = environment
        self._pins: dict[Dependency, Any] = {}
        self._written: set[str] = set()
        self._set: set[str] = set()
        self._seen: set[str] = set()
        #: Files whose pin is the digest of the bytes that were used.
        self._used: set[Dependency] = set()
        self._local = threading.local()

    @contextmanager
    def own(self) -> Iterator[bool]:
        """Yields whether the caller is not inside another `own`: what recording itself reads is not recorded."""
        if getattr(self._local, "busy", False):
            yield False
            return
        self._local.busy = True
        try:
            yield True
        finally:
            self._local.busy = False

    def name(self, path: str) -> str:
        """How `path` (absolute) is written in a dependency."""
        if path == self._project:
            return "."
        if path.startswith(self._project + os.sep):
            path = path[len(self._project) + 1 :]
        return path.replace(os.sep, "/")

    def is_inside(self, path: str) -> bool:
        """Whether `path` is inside the project."""
        return os.path.abspath(path).startswith(self._project + os.sep)

    def file(self, path: Any, digest: str | None = None) -> None:
        """`path` was opened, imported or asked about, found or not. `digest` is of the bytes that were used."""
        found = _absolute(path)
        if found is None or (found in self._seen and digest is None):
            return
        self._seen.add(found)
        for each in _with_target(found):
            self._file(each, digest)

    def directory(self, path: Any) -> None:
        """The entries of `path` were listed."""
        found = _absolute("." if path is None else path)
        if found is None or f"listing {found}" in self._seen:
            return
        self._seen.add(f"listing {found}")
        for each in _with_target(found):
            is_project = each == self._project
            if self.places.of(each).owner == "user" and (is_project or not self._is_above(each)):
                dependency = Dependency("listing", self.name(each))
                self._pins.setdefault(dependency, listing(each, in_project=is_project))

    def link(self, path: Any) -> None:
        """It was asked where the symbolic link `path` points, or whether it is one."""
        found = _absolute(path)
        if found is None or f"link {found}" in self._seen:
            return
        self._seen.add(f"link {found}")
        if found in self._written or self.places.of(found).owner != "user" or self._is_above(found):
            return
        target = link(found, self._project)
        if target != ABSENT:
            self._pins.setdefault(Dependency("link", self.name(found)), target)

    def wrote(self, path: Any) -> None:
        """This process wrote, made, renamed to or removed `path`."""
        found = _absolute(path)
        if found is not None:
            self._written.add(found)
            self._written.add(os.path.realpath(found))

    def distribution(self, name: str) -> None:
        """An installed distribution was used or looked for, by its normalized name."""
        if name and name not in DISTRIBUTIONS:
            self._pins.setdefault(Dependency("distribution", name), None)

    def environment(self, name: str) -> None:
        """A variable was read."""
        if name not in self._set and name not in STARTERS_VARIABLES:
            value = self._environment.get(name)
            seen = ABSENT if value is None else environment_digest(value)
            self._pins.setdefault(Dependency("environment", name), seen)

    def environment_set(self, name: str) -> None:
        """User code set or deleted a variable: what it reads there later is its own."""
        self._set.add(name)

    def refuse(self, reason: str) -> None:
        """The result must not be kept."""
        if reason not in self.reasons:
            self.reasons.append(reason)

    @property
    def extent(self) -> tuple[int, ...]:
        """Grows with everything that is recorded."""
        return len(self._pins), len(self._used), len(self._written), len(self._set), len(self.reasons)

    def observations(self) -> tuple[Observation, ...]:
        """Everything, in the order of first use, as it is now. Raises SourceError (``changed-during-trace``) when
        something is not what it was when user code saw it."""
        found = []
        with self.own():
            for dependency, pin in self._pins.items():
                seen = self._now(dependency, pin)
                if seen is not None:
                    found.append(Observation(dependency, seen))
        return tuple(found)

    def _file(self, path: str, digest: str | None) -> None:
        place = self.places.of(path)
        if place.distribution is not None and "-info" + os.sep not in path:
            # whoever looks for a distribution's plugins reads the metadata of all distributions: that is no use of them
            self.distribution(place.distribution)
        if place.owner != "user" or self._is_above(path):
            return
        dependency = Dependency("file", self.name(path))
        if dependency not in self._pins:
            if path in self._written:
                return
            self._pins[dependency] = _pin(path)
        if digest is not None and dependency not in self._used:
            self._used.add(dependency)
            self._pins[dependency] = digest

    def _is_above(self, path: str) -> bool:
        """The project and the directories above it are there for every trace, under another name on each machine."""
        return self._project == path or self._project.startswith(path.rstrip(os.sep) + os.sep)

    def _now(self, dependency: Dependency, pin: Any) -> str | None:
        path = os.path.join(self._project, dependency.name)
        if dependency.kind == "environment":
            return str(pin)
        if dependency.kind == "distribution":
            return observe(dependency, Path(self._project), file_digest)
        if dependency.kind == "listing":
            seen = observe(dependency, Path(self._project), file_digest)
            if seen == pin:
                return str(pin)
            if any(os.path.dirname(written) == path for written in self._written):
                self.refuse(f"the model's code makes files in {dependency.name}, whose entries it also lists")
                return None
            raise _changed(f"the entries of {'the project' if dependency.name == '.' else dependency.name}")
        seen = observe(dependency, Path(self._project), file_digest)
        mine = path in self._written or os.path.realpath(path) in self._written
        if isinstance(pin, str):
            if seen == pin:
                return pin
        elif _signature(path) == pin:
            return seen
        if mine:
            self.refuse(f"the model's code writes to {dependency.name}, which it looked at before")
            return None
        raise _changed(dependency.name)


def _changed(what: str) -> SourceError:
    return SourceError(
        f"{what} changed while the model was being traced; nothing was kept",
        code="changed-during-trace",
        hint="run it again",
    )


def _absolute(path: Any) -> str | None:
    """The absolute form of a path that user code used; None for a descriptor or anything else."""
    if isinstance(path, int) or path is None:
        return None
    try:
        text = os.fsdecode(path)
    except (TypeError, ValueError):
        return None
    if "\0" in text or not text:
        return None
    return os.path.abspath(text)


def _with_target(path: str) -> tuple[str, ...]:
    target = os.path.realpath(path)
    return (path,) if target == path else (path, target)


def _pin(path: str) -> Any:
    """A string where what was seen is known by itself, else the file's size, times and inode."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return ABSENT
    if stat.S_ISDIR(status.st_mode):
        return DIRECTORY
    if not stat.S_ISREG(status.st_mode):
        return SPECIAL
    if time.time() - max(status.st_mtime, status.st_ctime) < _GRANULARITY_S:
        return file_digest(path) or ABSENT
    return _signature(path)


def _signature(path: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)
