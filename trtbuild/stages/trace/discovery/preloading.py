"""Import the libraries of a source before its trace, in a process that stays between builds.

`trtbuild watch` forks the worker of a trace from such a process (`trtbuild.driver.workers.forking.preloading`). The
trace must have the same result and the same dependencies as in a process that has imported only torch.

Rules
1. The libraries are those that the source imports before its code does anything else (`LeadingImports`). The import
   statements run as if they were in a file of the project (`_FILE`), with the hooks, the seeds and the roots of a trace.
2. The dependencies of each import statement are stored. The trace adds them when the source executes this statement, so
   their order is that of a trace without preloaded imports. The trace itself records the dependencies that the manifest
   declares.
3. `Follower` checks that the source executes exactly the steps of its `LeadingImports`, up to the last import. If not, the
   trace raises UnfitLibraries, and its caller starts it again in another process. The trace also makes this check before
   it announces its program, because later steps then use the program.
4. `why_not_kept` returns a reason not to keep the process, if a trace in a fork of it could differ from a trace in a new
   process.
5. The imports are out of date if a file, a link, a directory's list of names or a module that they have looked up has
   changed, or the file of an imported module (`Preloaded.is_current`).
6. A fork gives the module ``random`` a new seed. So the trace restores the states of the random generators.
"""

# Paths are strings here: their exact spelling counts.
# ruff: noqa: PTH100, PTH115, PTH116, PTH208

from __future__ import annotations

import _thread
import contextlib
import os
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trtbuild.core.model.spec import Source
from trtbuild.stages.trace.discovery.discovery import Discovery
from trtbuild.stages.trace.discovery.loader import ImportFollower
from trtbuild.stages.trace.discovery.mappings import mapped_files
from trtbuild.stages.trace.discovery.recording import Segment
from trtbuild.stages.trace.examples import seed_everything
from trtbuild.stages.trace.user_code.leading_imports import (
    Code,
    Import,
    LeadingImports,
    UnfitLibraries,
    leading_imports,
)
from trtbuild.stages.trace.user_code.owners import FileOwners

#: The file name with which the import statements are compiled, so that they count as code of the project. The file does
#: not exist.
_FILE = "imports of trtbuild watch.py"


class Preloaded:
    """The state of this process after the imports. `output` is what they have written to the standard streams."""

    def __init__(self, discovery: Discovery, roots: Sequence[str], statements: Sequence[str]) -> None:
        self.discovery = discovery
        self.roots = tuple(roots)
        self.statements = tuple(statements)
        #: The dependencies of each statement (rule 2).
        self.segments: list[Segment] = []
        #: File of an imported module → its size, times and inode.
        self.module_files: dict[str, object] = {}
        self.output = b""
        self._random_states: tuple[Any, ...] = ()

    def is_current(self) -> bool:
        """Whether the files of the imports are unchanged (rule 5)."""
        files = self.module_files.items()
        return all(_state_of(file) == state for file, state in files) and all(
            self.discovery.recorder.is_current(segment) for segment in self.segments
        )

    def keep_random_states(self) -> None:
        numpy = sys.modules.get("numpy")
        self._random_states = (
            random.getstate(),
            torch.get_rng_state(),
            None if numpy is None else numpy.random.get_state(),
        )

    def restore_random_states(self) -> None:
        """Restore the states that the random generators had after the imports (rule 6)."""
        python_state, torch_state, numpy_state = self._random_states
        random.setstate(python_state)
        torch.set_rng_state(torch_state)
        if numpy_state is not None:
            sys.modules["numpy"].random.set_state(numpy_state)

    def follower(self, source: Source, project: Path) -> Follower:
        """Return the `Follower` for a trace of `source`. Raises UnfitLibraries if `source` has other leading imports or
        other roots."""
        leading = leading_imports(source, os.fspath(project))
        if leading is None or (leading.statements, source.roots) != (self.statements, self.roots):
            raise UnfitLibraries
        return Follower(leading, self)


@dataclass
class Follower(ImportFollower):
    """Compares the steps of a source with its `LeadingImports`, and adds the dependencies of the imports (rules 2, 3)."""

    leading: LeadingImports
    preloaded: Preloaded
    _position: int = 0
    _is_unfit: bool = field(default=False)

    def saw_code(self, path: str, sha256: str) -> None:
        self._compare(Code(path, sha256))

    def saw_import(self, name: str, names: Sequence[str], level: int) -> None:
        position = self._position
        if position == len(self.leading.steps):
            return
        expected = self.leading.steps[position]
        number = expected.statement if isinstance(expected, Import) else None
        self._compare(Import(name, tuple(names), level, number))
        if number is not None:
            if number == 0 and self.preloaded.output:  # the output of all imports appears at the first one
                sys.stderr.flush()
                os.write(2, self.preloaded.output)
            self.preloaded.discovery.recorder.add(self.preloaded.segments[number])

    def check_leading_imports(self) -> None:
        """Raise UnfitLibraries if the source has executed another step, or not all steps."""
        if self._is_unfit or self._position < len(self.leading.steps):
            raise UnfitLibraries

    def _compare(self, step: Code | Import) -> None:
        """Compare a step of the source with the next expected step."""
        if self._position < len(self.leading.steps):
            if self._is_unfit or step != self.leading.steps[self._position]:
                self._is_unfit = True
                raise UnfitLibraries
            self._position += 1


#: The imports of this process; empty if `preload` was not called.
_kept: list[Preloaded] = []


def preload(
    project: Path,
    roots: Sequence[str],
    statements: Sequence[str],
    environment: Mapping[str, str],
    loaded_modules: frozenset[str],
) -> Preloaded:
    """Execute import statements as code of the project does, for the traces in forks of this process. Raises the
    errors of the statements. For `environment` and `loaded_modules` see `Discovery`."""
    project = project.resolve()
    discovery = Discovery(project, Source("python", "", roots=tuple(roots)), environment, loaded_modules)
    preloaded = Preloaded(discovery, roots, statements)
    file, before = os.path.join(project, roots[0], _FILE), set(sys.modules)
    seed_everything()
    with torch.no_grad(), discovery.preloading():
        for statement in statements:
            exec(compile(statement, file, "exec", dont_inherit=True), {"__name__": "imports", "__file__": file})
            preloaded.segments.append(discovery.recorder.take())
    preloaded.keep_random_states()
    files = [getattr(sys.modules.get(name), "__file__", None) for name in sys.modules.keys() - before]
    preloaded.module_files = {file: _state_of(file) for file in files if isinstance(file, str)}
    _kept[:] = [preloaded]
    return preloaded


def _state_of(path: str) -> object:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


@dataclass(frozen=True)
class BegunTrace:
    """The discovery of a trace, a context manager that records its dependencies, and the check of rule 3.

    `check_leading_imports` raises UnfitLibraries if the source has not executed all imports of `preload` yet, or has
    executed another step before the last of them. The end of `recording` calls `check_leading_imports`, too.
    If `preload` was not called, the check does nothing.
    """

    discovery: Discovery
    recording: AbstractContextManager[None]
    check_leading_imports: Callable[[], None] = lambda: None


def begin_trace(
    project: Path, source: Source, environment: Mapping[str, str], loaded_modules: frozenset[str]
) -> BegunTrace:
    """Begin a trace, with seeds for the random generators. For `environment` and `loaded_modules` see `Discovery`.

    Raises UnfitLibraries if the source does not begin with the imports of `preload`.
    """
    if not _kept:
        seed_everything()
        discovery = Discovery(project, source, environment, loaded_modules)
        return BegunTrace(discovery, discovery.recording())
    (preloaded,) = _kept
    follower = preloaded.follower(source, project)
    preloaded.restore_random_states()
    preloaded.discovery.use_source(source)
    return BegunTrace(preloaded.discovery, _recording(preloaded.discovery, follower), follower.check_leading_imports)


@contextlib.contextmanager
def _recording(discovery: Discovery, follower: Follower) -> Iterator[None]:
    try:
        with discovery.recording(follower):
            yield
    finally:
        follower.check_leading_imports()  # UnfitLibraries replaces an error of the block


@dataclass(frozen=True)
class ProcessCounts:
    """The threads, open files, mapped copies of OpenBLAS, environment variables and modules of a process."""

    native_threads: int
    open_files: frozenset[str]
    blas_libraries: int
    variables: frozenset[str]
    modules: frozenset[str]

    @staticmethod
    def now() -> ProcessCounts:
        return ProcessCounts(
            len(os.listdir("/proc/self/task")),
            frozenset(_open_files()),
            sum("openblas" in os.path.basename(path) for path in mapped_files()),
            frozenset(os.environ),
            frozenset(sys.modules),
        )


def why_not_kept(preloaded: Preloaded, before: ProcessCounts) -> str | None:
    """Return the reason why this process must not be kept (rule 4); None if it may be kept.

    Only OpenBLAS may have threads, because it ends them before a fork, and starts them again after the fork. Each copy of
    OpenBLAS has one thread less than there are cores.
    """
    now = ProcessCounts.now()
    threads_of_blas = (now.blas_libraries - before.blas_libraries) * (len(os.sched_getaffinity(0)) - 1)
    recorder, owners = preloaded.discovery.recorder, preloaded.discovery.owners
    new_modules = now.modules - before.modules
    checks: list[tuple[str, Callable[[], object]]] = [
        ("a library started a thread", lambda: threading.active_count() > 1 or _thread._count() > 0),
        ("a library started a thread", lambda: now.native_threads > before.native_threads + threads_of_blas),
        ("a library started a process", _has_children),
        ("a library keeps a file open", lambda: now.open_files - before.open_files),
        ("a library deleted a variable", lambda: before.variables - now.variables),
        ("a library wrote a file", lambda: recorder.has_written),
        ("a library cannot be recorded", lambda: recorder.storage_refusals),
        (
            "an import executes code of the project",
            lambda: _user_modules(new_modules, owners),
        ),
    ]
    return next((reason for reason, applies in checks if applies()), None)


def _open_files() -> list[str]:
    """The open files of this process, except those in /dev and /proc."""
    files = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{descriptor}")
            if not target.startswith(("/dev/", "/proc/")):
                files.append(f"{descriptor} {target}")
    return files


def _has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def _user_modules(names: Iterable[str], owners: FileOwners) -> list[str]:
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in names}
    return [name for name, file in files.items() if isinstance(file, str) and owners.is_user(os.path.abspath(file))]
