"""Record the dependencies of user code in the order of first use, and check that they did not change during the trace.

Rules
1. At the first use of a dependency its state is stored: this is its *pin*. The pin of a file is its size, times, inode
   and device. If the digest of the file is already known, the pin is the digest. The pin is also the digest if the file
   changed a moment ago, because the next change may leave the times unchanged. Files, links and listings are observed
   again at the end. If one of them differs from its pin, it has changed during the trace. This is an error, unless this
   process has changed it (rule 2).
2. If this process writes a file and then reads it, the file is not a dependency. If the process reads or looks up a file,
   and then changes it, the trace is not cacheable. The next build traces again. If that trace only reads the file, it is
   cacheable. An example is a file that the first trace has downloaded.
3. A dependency's name has the separator ``/``. The name of a path inside the project is relative, other names are
   absolute. If a path leads through a symbolic link, the path and its target are both recorded. If user code reads the
   link itself (``Path.resolve``), the link is a dependency. A name contains ``..`` only after a symbolic link, because
   there the system goes to the parent of the link's target.
4. The recorded value of an environment variable is its value at the start of this process, because the next build
   compares its own value at the start. Torch or other installed code may have changed the variable since.
   As in rule 2, a variable that user code sets and then reads is not a dependency. ``HOME`` is recorded before a file,
   a link or a listing in this directory and outside the project: for another user, the code would read another file, in
   the home of that user.
5. If a file belongs to a distribution, the distribution is recorded, not the file. A read of a distribution's metadata is
   not recorded, and neither are files of Python, of trtbuild, in `owners.IGNORED_PATHS` and in `observe.IGNORED_ENTRIES`.
"""

# Paths are strings here: there are thousands of them, and their exact spelling counts.
# ruff: noqa: PTH100, PTH116, PTH117

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.core.recipes.dependency import ABSENT, Dependency, Observation
from trtbuild.errors import SourceError
from trtbuild.stages.trace.discovery.own_writes import OwnWrites
from trtbuild.stages.trace.discovery.paths import absolute_path, path_and_target
from trtbuild.stages.trace.discovery.pins import make_pin, status_pin
from trtbuild.stages.trace.user_code.observe import (
    environment_digest,
    file_digest,
    imported_path,
    link,
    listing,
    observe,
)
from trtbuild.stages.trace.user_code.owners import IGNORED_DISTRIBUTIONS, FileOwners

#: Variables that the parent process sets, to the same values for each trace (`trtbuild.driver.workers.environments`).
PARENT_VARIABLES = frozenset({"CUDA_VISIBLE_DEVICES", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE"})


class _OwnReads(threading.local):
    """A block in which the recorder itself reads. Each thread has its own `depth`.

    This is not a ``contextmanager``, because the block is entered thousands of times, and a plain class is faster."""

    depth = 0

    def __enter__(self) -> bool:
        self.depth += 1
        return self.depth == 1

    def __exit__(self, *error: object) -> None:
        self.depth -= 1


@dataclass(frozen=True)
class Segment:
    """The records of a part of the recording."""

    #: Dependency → its pin, in the order of first use.
    pins: dict[Dependency, Any]
    #: New entries of `Recorder._recorded_paths`.
    paths: frozenset[str]
    #: Files whose pin is the digest of the bytes that Python compiled.
    digest_pins: frozenset[Dependency]
    #: Path outside the project that a library looked up → its pin.
    library_lookups: dict[str, Any]


class Recorder:
    """Collects dependencies. Hooks call the methods `record_…` from any thread."""

    def __init__(self, project: Path, owners: FileOwners, environment: Mapping[str, str]) -> None:
        """`environment` contains the variables that this process started with."""
        self.owners = owners
        #: Reasons why the result must not be stored, in the order in which they were found.
        self.storage_refusals: list[str] = []
        #: Whether user code may start processes and read times, because the manifest declares its files (`deps`).
        self.declares_files = False
        self._project = os.fspath(project)
        self._environment = environment
        self._pins: dict[Dependency, Any] = {}
        self._own_writes = OwnWrites()
        #: Path outside the project that a library looked up → its pin, in the order of the first lookups.
        self._library_lookups: dict[str, Any] = {}
        self._set_variables: set[str] = set()
        #: Absolute paths that are recorded already. Those of listings and links begin with ``listing`` or ``link``.
        self._recorded_paths: set[str] = set()
        #: Files whose pin is the digest of the bytes that Python compiled.
        self._digest_pins: set[Dependency] = set()
        self._own_reads = _OwnReads()
        #: Whether a block `dropping_records` is active. Then hooks need not find out what they would record.
        self.drops_records = False

    def ignore_own_reads(self) -> AbstractContextManager[bool]:
        """Enter a block whose reads are those of the recorder. A hook enters it ``as outermost``. If `outermost` is False,
        a read of the recorder has called the hook, so the hook records nothing."""
        return self._own_reads

    @contextmanager
    def dropping_records(self) -> Iterator[None]:
        """Enter a block whose records are dropped, except those of written files. No user code runs in the block."""
        names = ("_pins", "_recorded_paths", "_digest_pins", "_set_variables", "storage_refusals")
        kept = {name: getattr(self, name).copy() for name in names} | {"drops_records": self.drops_records}
        self.drops_records = True
        try:
            yield
        finally:
            vars(self).update(kept)

    def take(self) -> Segment:
        """Return the records since the last call, and forget them."""
        segment = Segment(
            self._pins, frozenset(self._recorded_paths), frozenset(self._digest_pins), self._library_lookups
        )
        self._pins, self._recorded_paths, self._digest_pins, self._library_lookups = {}, set(), set(), {}
        return segment

    def add(self, segment: Segment) -> None:
        """Add records that `take` has returned, as if their dependencies were used now."""
        for dependency, pin in segment.pins.items():
            is_digest = dependency in segment.digest_pins
            if dependency not in self._pins or (is_digest and dependency not in self._digest_pins):
                self._pins[dependency] = pin
            if is_digest:
                self._digest_pins.add(dependency)
        self._recorded_paths |= segment.paths
        self._library_lookups = {**self._library_lookups, **segment.library_lookups}

    def is_current(self, segment: Segment) -> bool:
        """Whether the files, links, listings, imports and library lookups of a segment have the state of their pins."""
        lookups = {
            Dependency("file", path): pin for path, pin in segment.library_lookups.items() if self.owners.is_user(path)
        }
        return all(self._has_pinned_state(dependency, pin) for dependency, pin in (segment.pins | lookups).items())

    @property
    def has_written(self) -> bool:
        """Whether this process wrote a file that is neither ignored nor Python's own."""
        return any(self.owners.of(path).kind not in ("ignored", "python") for path in self._own_writes.files)

    def dependency_name(self, path: str) -> str:
        """The name of the absolute path `path` in a dependency (rule 3)."""
        if path == self._project:
            return "."
        if path.startswith(self._project + os.sep):
            path = path[len(self._project) + 1 :]
        return path.replace(os.sep, "/")

    def is_in_project(self, path: str) -> bool:
        return os.path.abspath(path).startswith(self._project + os.sep)

    def record_file(self, path: Any, digest: str | None = None, *, is_lookup: bool = False) -> None:
        """Record that `path` was opened, imported or looked up. The file need not exist. `digest` is the digest of its
        bytes, if it is known, for example of those that Python compiled. `is_lookup` is True if the bytes are not read."""
        if self.drops_records:
            return
        absolute = absolute_path(path)
        if absolute is not None and self._own_writes.has_appended(absolute) and not is_lookup:
            self.refuse_storage(f"the model's code appends to {self.dependency_name(absolute)}, and also reads it")
        if absolute is None or (absolute in self._recorded_paths and digest is None):
            return
        self._recorded_paths.add(absolute)
        for each_path in path_and_target(absolute):
            self._pin_file(each_path, digest)

    def record_listing(self, path: Any) -> None:
        """Record that the entries of `path` were listed."""
        if self.drops_records:
            return
        absolute = absolute_path("." if path is None else path)
        if absolute is None or f"listing {absolute}" in self._recorded_paths:
            return
        self._recorded_paths.add(f"listing {absolute}")
        for each_path in path_and_target(absolute):
            is_project = each_path == self._project
            if self.owners.of(each_path).kind == "user" and (is_project or not self._is_project_or_parent(each_path)):
                self._record_home(each_path)
                dependency = Dependency("listing", self.dependency_name(each_path))
                self._pins.setdefault(dependency, listing(each_path, in_project=is_project))

    def record_link(self, path: Any, *, is_user: bool = False) -> None:
        """Record a read of the symbolic link `path`, or a test whether it is a link.

        The test of a path that is not a link is recorded only if user code makes it (`is_user`), and only in the project.
        Outside the project, paths differ between machines."""
        absolute = absolute_path(path)
        if absolute is None:
            return
        is_absence_recorded = is_user and self.is_in_project(absolute) and not _is_in_python_environment(absolute)
        recorded_path = f"{'link' if is_absence_recorded else 'present link'} {absolute}"
        if recorded_path in self._recorded_paths:
            return
        self._recorded_paths.add(recorded_path)
        if (
            self._own_writes.has_written(absolute)
            or self.owners.of(absolute).kind != "user"
            or self._is_project_or_parent(absolute)
        ):
            return
        target = link(absolute, self._project)
        if target != ABSENT or is_absence_recorded:
            self._record_home(absolute)
            self._pins.setdefault(Dependency("link", self.dependency_name(absolute)), target)

    def record_write(self, path: Any) -> None:
        """Record that this process wrote, created or removed `path`, or renamed a file to it."""
        absolute = absolute_path(path)
        if absolute is not None:
            self._own_writes.add_file(absolute)
            self._recorded_paths.discard(absolute)  # this process may replace it by a link to another file

    def note_library_lookup(self, path: Any) -> None:
        """Note that a library looked whether `path`, which is outside the project, exists (`_record_library_lookups`)."""
        absolute = absolute_path(path)
        if (
            absolute is not None
            and absolute not in self._library_lookups
            and not self._own_writes.has_written(absolute)
        ):
            self._library_lookups[absolute] = make_pin(absolute)

    def record_append(self, path: Any) -> None:
        """Record that this process opened `path` to append to it, for example a log. This does not read the file."""
        absolute = absolute_path(path)
        if absolute is not None:
            self._own_writes.add_appended(absolute)

    def record_directory(self, path: Any) -> None:
        """Record that this process creates the directory `path`."""
        self.record_write(path)
        absolute = absolute_path(path)
        if absolute is not None:
            self._own_writes.add_directory(absolute)

    def record_database(self, path: Any) -> None:
        """Record that this process opened the database `path`, to read it or to write to it. SQLite also reads the changes
        in two files beside the database, if they exist."""
        absolute = absolute_path(path)
        if absolute is not None:
            self.record_file(absolute)
            self._own_writes.add_database_file(absolute)
            for suffix in ("-wal", "-journal"):
                file = os.path.realpath(absolute) + suffix
                # a digest, because SQLite changes the times of these files when it reads them
                self.record_file(file, None if file in self._recorded_paths else file_digest(file))
                self._own_writes.add_database_file(file)

    def record_distribution(self, name: str) -> None:
        """Record that a distribution was used or looked up. `name` is its normalized name."""
        if name and name not in IGNORED_DISTRIBUTIONS:
            self._pins.setdefault(Dependency("distribution", name), None)

    def record_variable(self, name: str) -> None:
        if name not in self._set_variables and name not in PARENT_VARIABLES:
            value = self._environment.get(name)
            observed = ABSENT if value is None else environment_digest(value)
            self._pins.setdefault(Dependency("environment", name), observed)

    def record_import(self, name: str) -> None:
        """Record that an import searched for the module `name` outside the directories of the source."""
        dependency = Dependency("import", name)
        if dependency not in self._pins:
            self._pins[dependency] = imported_path(name, self._project, self._environment.get("PYTHONPATH", ""))

    def record_variable_change(self, name: str) -> None:
        """Record that user code set or deleted an environment variable. Later reads of it are not dependencies."""
        self._set_variables.add(name)

    def refuse_storage(self, reason: str) -> None:
        if reason not in self.storage_refusals:
            self.storage_refusals.append(reason)

    def refuse_process(self) -> None:
        """Refuse to store the result, because user code starts a process, whose reads are not recorded. With
        `declares_files`, do nothing."""
        if not self.declares_files:
            self.refuse_storage(
                "the project's code starts a process, whose reads are not known: read the data in the same process "
                "(num_workers=0), or name the files in `deps` of the source"
            )

    def refuse_time(self, file: str, line: int) -> None:
        """Refuse to store the result, because user code reads a time of a file at this place. With `declares_files`, do
        nothing."""
        if not self.declares_files:
            self.refuse_storage(
                f"{self.dependency_name(file)}:{line} reads the time of a file, which differs in each checkout: choose the "
                "file by its name, or name the files in `deps` of the source"
            )

    @property
    def record_counts(self) -> tuple[int, ...]:
        """Each new record changes one of these numbers."""
        return (
            len(self._pins),
            len(self._digest_pins),
            self._own_writes.file_count,
            len(self._set_variables),
            len(self.storage_refusals),
        )

    def observations(self) -> tuple[Observation, ...]:
        """The observations of all dependencies, in the order of first use. Raises SourceError (``changed-during-trace``)
        if a dependency has changed since its first use, but not by a recorded write."""
        observations = []
        with self.ignore_own_reads():
            self._record_library_lookups()
            for dependency, pin in list(self._pins.items()):  # threads of user code may still add records
                state = self._observe_again(dependency, pin)
                if state is not None:
                    observations.append(Observation(dependency, state))
        return tuple(observations)

    def _record_library_lookups(self) -> None:
        """Record the lookups by libraries beside a file outside the project that is a dependency already.

        For example, a library that loads a model from a directory first looks for the best format of the weights. Other
        lookups are about the machine: compilers, or directories of the system."""
        files = [
            dependency.name for dependency, pin in self._pins.items() if dependency.kind == "file" and pin != ABSENT
        ]
        directories = {os.path.dirname(name) for name in files if os.path.isabs(name)}
        for path in list(self._library_lookups):
            if os.path.dirname(path) in directories:
                self.record_file(path, is_lookup=True)

    def _pin_file(self, path: str, digest: str | None) -> None:
        owner = self.owners.of(path)
        if owner.distribution is not None and "-info" + os.sep not in path:
            # a read of metadata does not count: a search for plugins also reads that of unused distributions
            self.record_distribution(owner.distribution)
        if owner.kind != "user" or self._is_project_or_parent(path):
            return
        dependency = Dependency("file", self.dependency_name(path))
        if dependency not in self._pins:
            if self._own_writes.has_written(path):
                return
            self._record_home(path)
            self._pins[dependency] = make_pin(path)
        if digest is not None and dependency not in self._digest_pins:
            self._digest_pins.add(dependency)
            self._pins[dependency] = digest

    def _record_home(self, path: str) -> None:
        """Record ``HOME`` if `path` is in this directory and outside the project (rule 4)."""
        home = self._environment.get("HOME", "").rstrip(os.sep)
        if home and path.startswith(home + os.sep) and not self.is_in_project(path):
            self.record_variable("HOME")

    def _is_project_or_parent(self, path: str) -> bool:
        """Whether `path` is the project or a directory above it. These directories exist in every trace, and their names
        differ between machines."""
        return self._project == path or self._project.startswith(path.rstrip(os.sep) + os.sep)

    def _has_pinned_state(self, dependency: Dependency, pin: Any) -> bool:
        if dependency.kind in ("distribution", "environment"):
            return True  # `trtbuild watch` compares distributions, and the server of its workers compares variables
        if isinstance(pin, str):
            return observe(dependency, Path(self._project), file_digest) == pin
        return bool(status_pin(os.path.join(self._project, dependency.name)) == pin)

    def _observe_again(self, dependency: Dependency, pin: Any) -> str | None:
        """The state of a dependency at the end of the trace. Variables and imports are not observed again: they have the
        state of their pin. None if this process changed the dependency: then the trace is not cacheable."""
        path = os.path.join(self._project, dependency.name)
        if dependency.kind in ("environment", "import"):
            return str(pin)
        if dependency.kind == "distribution":
            return observe(dependency, Path(self._project), file_digest)
        if dependency.kind == "listing":
            observed = observe(dependency, Path(self._project), file_digest)
            if observed == pin:
                return str(pin)
            if observed == ABSENT and self._own_writes.has_created_directory(path):
                return None  # a temporary directory: its entries were those of this process
            if self._own_writes.has_changed_entries(path):
                self.refuse_storage(f"the model's code creates files in {dependency.name}, and also lists its entries")
                return None
            raise _change_error(f"the entries of {'the project' if dependency.name == '.' else dependency.name}")
        observed = observe(dependency, Path(self._project), file_digest)
        if isinstance(pin, str):
            if observed == pin:
                return pin
        elif status_pin(path) == pin:
            return observed
        if pin == ABSENT and self._own_writes.is_database_file(path) and _is_empty(path):
            return ABSENT  # SQLite has created a file for changes beside a database that it reads
        if self._own_writes.may_have_changed(path):
            self.refuse_storage(f"the model's code writes to {dependency.name}, which it read before")
            return None
        raise _change_error(dependency.name)


def _change_error(subject: str) -> SourceError:
    return SourceError(
        f"{subject} changed while the model was being traced; nothing was kept",
        code="changed-during-trace",
        hint="run it again",
    )


def _is_empty(path: str) -> bool:
    try:
        return os.stat(path).st_size == 0
    except OSError:
        return False


def _is_in_python_environment(path: str) -> bool:
    return path == sys.prefix or path.startswith(sys.prefix + os.sep)
