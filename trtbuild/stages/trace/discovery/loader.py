"""Import user code while a trace is recorded.

Rules
1. Every module of the user is compiled from the bytes that are hashed. ``.pyc`` files are neither read nor written:
   Python compares only sizes and whole seconds, so an edit of the same size within a second would run the old code.
   This applies to every way to import, because trtbuild replaces the method that all loaders of source files share.
2. The roots of the source are first on ``sys.path``. An import of user code looks for files there and in other
   directories of the user. A file that it did not find is a dependency, because the import would find it if it appeared.
3. An import by installed or standard code prefers installed modules. So a project file with the name of a library's
   dependency changes nothing, and is not a dependency.
4. A name that is not found at all is also recorded as an absent distribution of that name.
5. Modules that this process loaded before the trace (`loaded`) are dependencies only if user code imports them.
"""

# Paths are strings here: there are thousands of them, and their exact spelling counts.
# ruff: noqa: PTH100, PTH112

from __future__ import annotations

import builtins
import hashlib
import importlib
import importlib.machinery
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from trtbuild.stages.trace.discovery.recording import Recorder
from trtbuild.stages.trace.user_code.observe import normalized
from trtbuild.stages.trace.user_code.places import HOME, Place

Patch = Callable[[ModuleType], None]


class Importing:
    """Installs and removes the rules above. `after`: the name of a module → a function to call on the loaded module."""

    def __init__(
        self, recorder: Recorder, roots: Iterable[str], after: dict[str, Patch], loaded: frozenset[str] = frozenset()
    ) -> None:
        self._recorder = recorder
        self._loaded = loaded
        self._roots = list(roots)
        self._finder = _Finder(recorder, self._roots, after)
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        recorder = self._recorder
        # the class that defines get_code
        owner = next(c for c in importlib.machinery.SourceFileLoader.__mro__ if "get_code" in vars(c))
        original = owner.get_code  # type: ignore[attr-defined]

        def get_code(self: Any, fullname: str) -> Any:
            path = self.get_filename(fullname)
            if not recorder.places.is_user(os.path.abspath(path)):
                return original(self, fullname)
            data = self.get_data(path)
            with recorder.own():
                recorder.file(path, hashlib.sha256(data).hexdigest())
            return self.source_to_code(data, path)

        owner.get_code = get_code  # type: ignore[attr-defined]
        self._undo.append(lambda: setattr(owner, "get_code", original))
        old_flag, old_path = sys.dont_write_bytecode, list(sys.path)
        sys.dont_write_bytecode = True
        sys.path[:0] = self._roots
        sys.meta_path.insert(0, self._finder)
        importlib.invalidate_caches()
        self._record_loaded_imports()

        def restore() -> None:
            sys.dont_write_bytecode = old_flag
            sys.path[:] = old_path
            sys.meta_path.remove(self._finder)

        self._undo.append(restore)

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _record_loaded_imports(self) -> None:
        """Apply rule 5: the import of a loaded module does not call finders."""
        recorder, loaded, original = self._recorder, self._loaded, builtins.__import__

        def recording_import(
            name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
        ) -> Any:
            if level == 0 and name in loaded and isinstance(path := (globals or {}).get("__file__"), str):
                with recorder.own():
                    if recorder.places.is_user(os.path.abspath(path)):
                        file = getattr(sys.modules.get(name), "__file__", None)
                        if isinstance(file, str):
                            recorder.file(file)
            return original(name, globals, locals, fromlist, level)

        builtins.__import__ = recording_import
        self._undo.append(lambda: setattr(builtins, "__import__", original))


class _Finder:
    """The first finder on ``sys.meta_path``. It calls the other finders, and records the names that they did not find."""

    def __init__(self, recorder: Recorder, roots: Sequence[str], after: dict[str, Patch]) -> None:
        self._recorder = recorder
        self._roots = frozenset(os.path.abspath(root) for root in roots)
        self._after = after
        self._local = threading.local()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if getattr(self._local, "busy", False):
            return None
        self._local.busy = True
        try:
            importer = self._recorder.places.of(_importer())
            by_user = importer.owner in ("user", "trtbuild")  # trtbuild imports the source's own module
            if path is None and not by_user:
                spec = self._find_with_others(
                    name, None, target, [entry for entry in sys.path if not self._is_root(entry)]
                )
                spec = spec or PathFinder.find_spec(name, [entry for entry in sys.path if self._is_root(entry)], target)
            else:
                spec = self._find_with_others(name, path, target, None)
            with self._recorder.own():
                if by_user or (spec is None and path is None and _misses_are_recorded(importer)):
                    self._record_missed(name, sys.path if path is None else path, spec, by_user)
            if spec is not None and name in self._after:
                _call_after(spec, self._after[name])
            return spec
        finally:
            self._local.busy = False

    def _find_with_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None, system_path: list[str] | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            search_path = system_path if system_path is not None and finder is PathFinder else path
            spec: ModuleSpec | None = finder.find_spec(name, search_path, target)
            if spec is not None:
                return spec
        return None

    def _is_root(self, entry: str) -> bool:
        return os.path.abspath(entry) in self._roots

    def _record_missed(self, name: str, searched: Iterable[str], spec: ModuleSpec | None, by_user: bool) -> None:
        tail = name.rpartition(".")[2]
        origin = None if spec is None else spec.origin
        if spec is not None and origin in ("built-in", "frozen"):
            return  # these modules are found before anything on the path
        if spec is None and "." not in name:
            self._recorder.distribution(normalized(name))
        if not by_user:
            return
        for entry in searched:
            directory = os.path.abspath(entry)
            if directory == HOME and directory not in self._roots:
                continue  # an editable install of trtbuild itself
            if not self._recorder.places.is_user(directory) and directory not in self._roots:
                if origin is not None and os.path.dirname(origin) == directory:
                    return
                continue
            for candidate in _candidates(directory, tail, origin):
                if origin == candidate:
                    return
                self._recorder.file(candidate)


def _importer() -> str:
    """The file of the nearest frame outside the import system and this module."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        filename = frame.f_code.co_filename
        system = filename.startswith("<frozen") or f"{os.sep}importlib{os.sep}" in filename
        if not system and filename != __file__:
            return str(filename)
        frame = frame.f_back
    return "<frozen>"


def _misses_are_recorded(importer: Place) -> bool:
    """Whether names that an importer does not find are recorded. Those that Python and torch probe (``_winapi``,
    ``z3``) depend on their versions and the platform, which are in the key."""
    return importer.owner == "distribution" and importer.distribution != "torch"


def _candidates(directory: str, tail: str, found: str | None) -> list[str]:
    """The files that an import of `tail` looks for in a directory, in order (`FileFinder`). The list has one file
    of a package."""
    package = os.path.join(directory, tail)
    first = os.path.join(package, "__init__.py") if os.path.isdir(package) else package
    source = package + ".py"
    # projects have extension modules only next to their sources (Cython)
    return [first, package + EXTENSION_SUFFIXES[0], source] if found == source else [first, source]


def _call_after(spec: ModuleSpec, patch: Patch) -> None:
    loader: Any = spec.loader
    if loader is None or not hasattr(loader, "exec_module"):
        return
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        patch(module)

    loader.exec_module = exec_module
