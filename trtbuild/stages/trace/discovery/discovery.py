"""Find the dependencies of a trace while user code runs.

The module `recording` stores the dependencies. Seven modules find them: `hooks` (audit events), `loader` (imports),
`wrappers` (reads without an audit event), `variables` (environment variables), `mappings` (files that the other modules
missed), `operators` (custom operators) and `patterns` (files that the manifest declares).

A trace does not notice the network, the clock, other processes, or edits inside installed distributions. Libraries in C,
C++ or Rust that are not in ``wrappers.READERS`` may read files without an audit event. Such a file is found only if it is
still mapped into memory at the end of the trace. A manifest can declare the dependencies that a trace misses:
``source: {deps: […], env: […], cacheable: false}``.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from trtbuild.core.model.spec import Source
from trtbuild.core.recipes.dependency import Observation
from trtbuild.stages.trace.discovery import hooks, patterns
from trtbuild.stages.trace.discovery.loader import ImportFollower, ImportRules, SearchState
from trtbuild.stages.trace.discovery.mappings import mapped_files
from trtbuild.stages.trace.discovery.operators import Operators
from trtbuild.stages.trace.discovery.recording import Recorder
from trtbuild.stages.trace.discovery.wrappers import ReaderWrappers
from trtbuild.stages.trace.user_code.owners import FileOwners


class Discovery:
    """The dependencies of one trace."""

    def __init__(
        self,
        project: Path,
        source: Source,
        environment: Mapping[str, str],
        loaded_modules: frozenset[str] = frozenset(),
    ) -> None:
        """`environment` contains the environment variables at the start of this process. `loaded_modules` are the modules
        that this process imported before trtbuild imported torch. They are dependencies only if user code imports them.
        But if torch is among them, user code may have run before trtbuild, so all of them are dependencies."""
        self._project = project
        self._loaded_modules = set() if "torch" in loaded_modules else set(loaded_modules)
        self._import_rules: ImportRules | None = None
        #: Files that are mapped into memory before user code runs, or by trtbuild's own work. They are not dependencies.
        self._mapped_before: frozenset[str] = frozenset()
        #: Files that were mapped at the end of the block `preloading`; None without such a block.
        self._mapped_after_preloading: frozenset[str] | None = None
        #: ``sys.path`` and ``sys.meta_path`` at the end of the block `preloading`.
        self._search_state: SearchState | None = None
        self.owners = FileOwners(project)
        self._recorder = Recorder(project, self.owners, environment)
        self._operators = Operators(self._recorder)
        self.use_source(source)

    def use_source(self, source: Source) -> None:
        """Record the dependencies of `source` from now on. Its roots must equal those of the previous source."""
        self._source = source
        self._recorder.declares_files = bool(source.deps)
        if not source.cacheable:
            self._recorder.refuse_storage("the manifest says `cacheable: false`")

    @contextmanager
    def recording(self, follower: ImportFollower | None = None) -> Iterator[None]:
        """Record the dependencies of user code that runs inside the block. `follower` observes the imports of this
        code."""
        mapped = mapped_files()
        if self._mapped_after_preloading is None:
            self._mapped_before = mapped
        else:
            self._mapped_before |= mapped - self._mapped_after_preloading
        self._record_declared_dependencies()
        try:
            with self._installed(follower):
                yield
        finally:
            for path in sorted(mapped_files() - self._mapped_before):
                self._recorder.record_file(path)

    @contextmanager
    def preloading(self) -> Iterator[None]:
        """Record dependencies inside the block. A later `recording` begins with the ``sys.path`` and the
        ``sys.meta_path`` of the end of this block."""
        self._mapped_before = mapped_files()
        with self._installed():
            yield
            if self._import_rules is not None:
                self._search_state = self._import_rules.search_state()
        self._mapped_after_preloading = mapped_files()
        self.owners.forget_files()

    @contextmanager
    def _installed(self, follower: ImportFollower | None = None) -> Iterator[None]:
        wrappers = ReaderWrappers(self._recorder, declares_variables=bool(self._source.env))
        roots = [os.path.normpath(self._project / root) for root in self._source.roots]
        import_rules = ImportRules(self._recorder, roots, wrappers.patches(), self._loaded_modules, follower)
        self._import_rules = import_rules
        # the order matters: `_operators` and `wrappers` wrap load_library, and the wrapper installed later is the outer one
        installers = (self._operators, wrappers, import_rules)
        for installer in installers:
            installer.install()
        if self._search_state is not None:
            import_rules.use_search_state(self._search_state)
        hooks.set_recorder(self._recorder)
        try:
            yield
        finally:
            hooks.set_recorder(None)
            for installer in reversed(installers):
                installer.remove()

    def import_library(self, name: str, distributions: Iterable[str]) -> ModuleType:
        """During the recording, import a library that trtbuild itself uses. Only `distributions` become dependencies. The
        modules that the library loads become dependencies only if user code imports them, too. Raises ImportError."""
        with self.own_work():
            module = importlib.import_module(name)
        for distribution in distributions:
            self._recorder.record_distribution(distribution)
        return module

    @contextmanager
    def own_work(self) -> Iterator[None]:
        """During the recording, enter a block for trtbuild's own work. The files that it reads and the modules that it
        loads do not become dependencies."""
        if self._import_rules is None:
            raise AssertionError("nothing is recorded now")
        mapped = mapped_files()
        with self._recorder.dropping_records(), self._import_rules.suspended():
            yield
        self._mapped_before |= mapped_files() - mapped

    def implementation_digest(self, name: str) -> str:
        """The digest of the implementation of a custom operator."""
        return self._operators.implementation_digest(name)

    def dependency_state(self) -> object:
        """A value that changes with each new dependency, and with the first import from each installed distribution."""
        owners = (self.owners.of(path) for path in map(_file_of, list(sys.modules.values())) if path)
        return self._recorder.record_counts, frozenset(owner.distribution for owner in owners)

    @property
    def recorder(self) -> Recorder:
        return self._recorder

    @property
    def operators(self) -> dict[str, str]:
        """The digest of each custom operator that the program calls, by the operator's name."""
        return dict(self._operators.digests)

    def custom_operators(self) -> list[dict[str, Any]]:
        """The JSON of each custom operator that the program calls. Raises SourceError if two modules register one of
        them."""
        return [operator.to_json() for operator in self._operators.describe()]

    def observations(self) -> tuple[Observation, ...]:
        """The state of all dependencies, in the order of first use. Raises SourceError if a dependency changed during the
        trace."""
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None)
            if isinstance(path, str) and name not in self._loaded_modules:
                owner = self.owners.of(path)
                if owner.distribution is not None:
                    self._recorder.record_distribution(owner.distribution)
        return self._recorder.observations()

    @property
    def uncacheable(self) -> str | None:
        """The reason why the result must not be stored; None if it may be stored."""
        return "; ".join(self._recorder.storage_refusals) or None

    def _record_declared_dependencies(self) -> None:
        for pattern in self._source.deps:
            patterns.record_matches(pattern, self._project, self._recorder)
        for name in self._source.env:
            self._recorder.record_variable(name)
        if self._source.file is not None:
            self._recorder.record_file(self._project / self._source.file)


def _file_of(module: object) -> str | None:
    path = getattr(module, "__file__", None)
    return path if isinstance(path, str) else None
