"""Find the dependencies of a trace while user code runs.

`recording` stores the dependencies. Five modules report to it: `hooks` (audit events), `loader` (imports), `wrappers`
(readers that are not written in Python), `mappings` (files that the other modules missed) and `operators` (custom
operators).

A trace does not notice the network, the clock, other processes, and edits inside installed distributions. It also misses
files that C, C++ or Rust code of a library outside ``wrappers.READERS`` reads and unmaps again. A manifest declares
such dependencies with ``source: {deps: […], env: […], cacheable: false}``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from trtbuild.core.model.spec import Source
from trtbuild.core.recipes.dependency import Observation
from trtbuild.stages.trace.discovery import hooks, patterns
from trtbuild.stages.trace.discovery.loader import Importing
from trtbuild.stages.trace.discovery.mappings import mapped_files
from trtbuild.stages.trace.discovery.operators import Operators
from trtbuild.stages.trace.discovery.recording import Recorder
from trtbuild.stages.trace.discovery.wrappers import READERS, Wrapping
from trtbuild.stages.trace.user_code.places import Places


class Discovery:
    """The dependencies of one trace."""

    def __init__(
        self, project: Path, source: Source, environment: Mapping[str, str], loaded: frozenset[str] = frozenset()
    ) -> None:
        """`environment` contains the variables that this process started with. `loaded` are the modules that it imported
        before torch: they are dependencies only if user code uses them."""
        self._project = project
        self._source = source
        self._loaded = frozenset() if "torch" in loaded else loaded
        self.places = Places()
        self._recorder = Recorder(project, self.places, environment)
        self._operators = Operators(self._recorder)
        if not source.cacheable:
            self._recorder.refuse("the manifest says `cacheable: false`")

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the dependencies of user code that runs inside the block."""
        wrapping = Wrapping(self._recorder)
        roots = [os.path.normpath(self._project / root) for root in self._source.roots]
        importing = Importing(self._recorder, roots, dict.fromkeys(READERS, wrapping.patch), self._loaded)
        self._record_declared()
        mapped = mapped_files()
        # the order matters: the reader's wrapper of load_library is outside the operators' wrapper
        installers = (self._operators, wrapping, importing)
        for part in installers:
            part.install()
        hooks.activate(self._recorder)
        try:
            yield
        finally:
            hooks.activate(None)
            for part in reversed(installers):
                part.remove()
            for path in sorted(mapped_files() - mapped):
                self._recorder.file(path)

    def implementation(self, name: str) -> str:
        """The digest of a custom operator's implementation, for `program_text`."""
        return self._operators.implementation(name)

    def seen(self) -> object:
        """A value that changes with each new dependency, installed distributions included."""
        places = (self.places.of(path) for path in map(_file_of, list(sys.modules.values())) if path)
        return self._recorder.extent, frozenset(place.distribution for place in places)

    @property
    def operators(self) -> dict[str, str]:
        """Digests of the custom operators that the program calls, by name."""
        return dict(self._operators.digests)

    def observations(self) -> tuple[Observation, ...]:
        """All dependencies, in the order of first use. Raises SourceError if one of them changed during the trace."""
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None)
            if isinstance(path, str) and name not in self._loaded:
                place = self.places.of(path)
                if place.distribution is not None:
                    self._recorder.distribution(place.distribution)
        return self._recorder.observations()

    @property
    def uncacheable(self) -> str | None:
        """The reason why the result must not be stored; None if it may be stored."""
        return "; ".join(self._recorder.reasons) or None

    def _record_declared(self) -> None:
        for pattern in self._source.deps:
            patterns.add(pattern, self._project, self._recorder)
        for name in self._source.env:
            self._recorder.environment(name)
        if self._source.file is not None:
            self._recorder.file(self._project / self._source.file)


def _file_of(module: object) -> str | None:
    path = getattr(module, "__file__", None)
    return path if isinstance(path, str) else None
