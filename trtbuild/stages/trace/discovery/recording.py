"""Record the dependencies of user code in the order of first use, and check that they did not change during the trace.

Rules
1. A dependency is pinned at its first use: by size, times and inode, or by its digest. The digest is used if it is
   known, or if the file changed a moment ago (then its times cannot show another change). At the end all dependencies
   are observed again. A dependency that differs from its pin has changed during the trace.
2. A file that this process wrote before it read it is not a dependency. If the process read a file first, and then
   created or overwrote it, the trace is not cacheable. (A second trace, which finds the file, is cacheable.)
3. Paths are posix, relative inside the project and absolute outside. A path through a symlink is recorded as it was
   opened and as its target. If user code reads the link itself (``Path.resolve``), this is a link dependency.
4. The recorded value of a variable is the value at the start of this process, even if torch or the model has changed it
   since. The next build compares this value, too. As in rule 2, a variable that user code set before it read it is not
   a dependency.
5. For a file of a distribution, the distribution is recorded. Files of Python, trtbuild and `places.IGNORED` are not
   recorded.
"""

# Paths are strings here: there are thousands of them, and their exact spelling counts.
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

#: If a file changed less than this before it was read, its times may not show the next change.
_GRANULARITY_S = 2.0


#: Variables that the parent process sets for a trace (`trtbuild.driver.workers.pool`): equal in every trace.
PARENT_VARIABLES = frozenset({"CUDA_VISIBLE_DEVICES", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE"})


class Recorder:
    """Collects dependencies. Hooks call its methods from any thread, so they never raise."""

    def __init__(self, project: Path, places: Places, environment: Mapping[str, str]) -> None:
        """`environment` contains the variables that this process started with."""
        self.places = places
        #: Reasons why the result must not be stored, in the order in which they were found.
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
        """Mark reads by the recorder itself, which are not recorded. Yields False inside another `own`."""
        if getattr(self._local, "busy", False):
            yield False
            return
        self._local.busy = True
        try:
            yield True
        finally:
            self._local.busy = False

    def name(self, path: str) -> str:
        """The name of `path` (absolute) in a dependency."""
        if path == self._project:
            return "."
        if path.startswith(self._project + os.sep):
            path = path[len(self._project) + 1 :]
        return path.replace(os.sep, "/")

    def is_inside(self, path: str) -> bool:
        """Whether `path` is inside the project."""
        return os.path.abspath(path).startswith(self._project + os.sep)

    def file(self, path: Any, digest: str | None = None) -> None:
        """Record that `path` was opened, imported or looked up, whether it exists or not. `digest` is the digest of the
        bytes that were used."""
        absolute = _absolute(path)
        if absolute is None or (absolute in self._seen and digest is None):
            return
        self._seen.add(absolute)
        for each_path in _with_target(absolute):
            self._file(each_path, digest)

    def directory(self, path: Any) -> None:
        """Record that the entries of `path` were listed."""
        absolute = _absolute("." if path is None else path)
        if absolute is None or f"listing {absolute}" in self._seen:
            return
        self._seen.add(f"listing {absolute}")
        for each_path in _with_target(absolute):
            is_project = each_path == self._project
            if self.places.of(each_path).owner == "user" and (is_project or not self._is_above(each_path)):
                dependency = Dependency("listing", self.name(each_path))
                self._pins.setdefault(dependency, listing(each_path, in_project=is_project))

    def link(self, path: Any) -> None:
        """Record a read of the symbolic link `path`, or a test whether it is a link."""
        absolute = _absolute(path)
        if absolute is None or f"link {absolute}" in self._seen:
            return
        self._seen.add(f"link {absolute}")
        if absolute in self._written or self.places.of(absolute).owner != "user" or self._is_above(absolute):
            return
        target = link(absolute, self._project)
        if target != ABSENT:
            self._pins.setdefault(Dependency("link", self.name(absolute)), target)

    def wrote(self, path: Any) -> None:
        """Record that this process wrote, created or removed `path`, or renamed a file to it."""
        absolute = _absolute(path)
        if absolute is not None:
            self._written.add(absolute)
            self._written.add(os.path.realpath(absolute))

    def distribution(self, name: str) -> None:
        """Record that an installed distribution was used or looked up, by its normalized name."""
        if name and name not in DISTRIBUTIONS:
            self._pins.setdefault(Dependency("distribution", name), None)

    def environment(self, name: str) -> None:
        """Record that a variable was read."""
        if name not in self._set and name not in PARENT_VARIABLES:
            value = self._environment.get(name)
            observed = ABSENT if value is None else environment_digest(value)
            self._pins.setdefault(Dependency("environment", name), observed)

    def environment_set(self, name: str) -> None:
        """Record that user code set or deleted a variable: later reads are not dependencies."""
        self._set.add(name)

    def refuse(self, reason: str) -> None:
        """Record a reason why the result must not be stored."""
        if reason not in self.reasons:
            self.reasons.append(reason)

    @property
    def extent(self) -> tuple[int, ...]:
        """A value that grows with each record."""
        return len(self._pins), len(self._used), len(self._written), len(self._set), len(self.reasons)

    def observations(self) -> tuple[Observation, ...]:
        """Observe all dependencies now, in the order of first use. Raises SourceError (``changed-during-trace``) if one
        differs from what user code saw."""
        found = []
        with self.own():
            for dependency, pin in self._pins.items():
                state = self._observed_again(dependency, pin)
                if state is not None:
                    found.append(Observation(dependency, state))
        return tuple(found)

    def _file(self, path: str, digest: str | None) -> None:
        place = self.places.of(path)
        if place.distribution is not None and "-info" + os.sep not in path:
            # a search for plugins reads the metadata of all distributions, but does not use them
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
        """Whether `path` is the project or a directory above it. They exist in every trace, and their names differ
        between machines."""
        return self._project == path or self._project.startswith(path.rstrip(os.sep) + os.sep)

    def _observed_again(self, dependency: Dependency, pin: Any) -> str | None:
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
                self.refuse(f"the model's code creates files in {dependency.name}, and also lists its entries")
                return None
            raise _changed(f"the entries of {'the project' if dependency.name == '.' else dependency.name}")
        seen = observe(dependency, Path(self._project), file_digest)
        is_written = path in self._written or os.path.realpath(path) in self._written
        if isinstance(pin, str):
            if seen == pin:
                return pin
        elif _signature(path) == pin:
            return seen
        if is_written:
            self.refuse(f"the model's code writes to {dependency.name}, which it read before")
            return None
        raise _changed(dependency.name)


def _changed(subject: str) -> SourceError:
    return SourceError(
        f"{subject} changed while the model was being traced; nothing was kept",
        code="changed-during-trace",
        hint="run it again",
    )


def _absolute(path: Any) -> str | None:
    """The absolute form of a path in user code; None for a descriptor or anything else."""
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
    """The pin of a path: a string if the observation is known already, otherwise the file's size, times and inode."""
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
