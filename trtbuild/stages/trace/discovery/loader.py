"""Import user code while a trace is recorded, without ``.pyc`` files.

Rules
1. Every module of the user is read once: the same bytes are hashed and compiled. Its ``.pyc`` file is neither read nor
   written, because Python would run old code after an edit that keeps the source's size and its time in whole seconds.
   This holds for every way to import a module, because all loaders of source files share the replaced method `get_code`.
2. The roots of the source (``source: {roots: […]}``) are first on ``sys.path``. An import by user code looks for files
   there and in the user's other directories. Each file that it does not find is a dependency, because the import would
   load this file if it appeared.
3. An import by installed code or by the standard library searches the roots last. So a project file does not replace an
   installed module of the same name, and is not a dependency.
4. If an import does not find a top-level module, a distribution with the module's name is recorded as absent. So a later
   build notices when the distribution, or a module of that name (`observe.MODULE`), has been installed. Imports by
   Python and torch are an exception (`_are_missing_names_recorded`).
5. Modules that this process loaded before the trace (`loaded_modules`) are dependencies only if user code imports them.
"""

# Paths are strings here: there are thousands of them, and their exact spelling matters.
# ruff: noqa: PTH100, PTH112, PTH117

from __future__ import annotations

import builtins
import hashlib
import importlib
import importlib.machinery
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from trtbuild.stages.trace.discovery.recording import Recorder
from trtbuild.stages.trace.user_code.observe import normalized
from trtbuild.stages.trace.user_code.owners import PACKAGE_PARENT, FileOwner

#: A function that changes a module as soon as the module is loaded.
Patch = Callable[[ModuleType], None]

#: ``sys.path`` and ``sys.meta_path``; None stands for the finder of `ImportRules`.
SearchState = tuple[list[str], list[Any]]


class ImportFollower(ABC):
    """Observes the imports of user code. Each method is called before Python executes the code or the import."""

    @abstractmethod
    def saw_code(self, path: str, sha256: str) -> None:
        """User code with this digest is going to be executed."""

    @abstractmethod
    def saw_import(self, name: str, names: Sequence[str], level: int) -> None:
        """User code calls ``__import__`` with these arguments."""


class ImportRules:
    """Installs and removes the rules above. `patches`: name of a module → its patch."""

    def __init__(
        self,
        recorder: Recorder,
        roots: Iterable[str],
        patches: dict[str, Patch],
        loaded_modules: set[str] | None = None,
        follower: ImportFollower | None = None,
    ) -> None:
        self._recorder = recorder
        self._follower = follower
        self._loaded_modules = set() if loaded_modules is None else loaded_modules
        self._patches = patches
        self._roots = list(roots)
        self._finder = _Finder(recorder, self._roots, patches)
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        recorder, follower = self._recorder, self._follower
        # the class that defines get_code for all loaders of source files
        base_loader = next(c for c in importlib.machinery.SourceFileLoader.__mro__ if "get_code" in vars(c))
        original = base_loader.get_code  # type: ignore[attr-defined]

        def get_code(self: Any, fullname: str) -> Any:
            path = self.get_filename(fullname)
            if not recorder.owners.is_user(os.path.abspath(path)):
                return original(self, fullname)
            data = self.get_data(path)
            digest = hashlib.sha256(data).hexdigest()
            if follower is not None:
                follower.saw_code(path, digest)
            with recorder.ignore_own_reads():
                recorder.record_file(path, digest)
            return self.source_to_code(data, path)

        base_loader.get_code = get_code  # type: ignore[attr-defined]
        self._undo.append(lambda: setattr(base_loader, "get_code", original))
        previous_flag, previous_path = sys.dont_write_bytecode, list(sys.path)
        sys.dont_write_bytecode = True
        sys.path[:0] = self._roots
        sys.meta_path.insert(0, self._finder)
        importlib.invalidate_caches()
        self._wrap_import()

        def restore() -> None:
            sys.dont_write_bytecode = previous_flag
            sys.path[:] = previous_path
            sys.meta_path.remove(self._finder)

        self._undo.append(restore)

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    def search_state(self) -> SearchState:
        """The present ``sys.path`` and ``sys.meta_path``. Imports may have changed them."""
        return list(sys.path), [None if finder is self._finder else finder for finder in sys.meta_path]

    def use_search_state(self, state: SearchState) -> None:
        """Use the result of `search_state` of another `ImportRules` object with the same roots."""
        sys.path[:], finders = state
        sys.meta_path[:] = [self._finder if finder is None else finder for finder in finders]

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Enter a block in which imports find installed modules only. After the block, rule 5 also holds for the modules
        that it has loaded: they are added to `loaded_modules`."""
        path, before = list(sys.path), set(sys.modules)
        position = sys.meta_path.index(self._finder)
        del sys.meta_path[position]
        is_user = self._recorder.owners.is_user
        sys.path[:] = [entry for entry in path if not is_user(os.path.abspath(entry))]
        try:
            yield
        finally:
            sys.path[:] = path
            sys.meta_path.insert(position, self._finder)
            loaded = sys.modules.keys() - before
            self._loaded_modules |= loaded
            for name in loaded & self._patches.keys():
                self._patches[name](sys.modules[name])

    def _wrap_import(self) -> None:
        """Replace ``__import__``, to apply rule 5 and to call the follower. A finder could not do this, because Python
        calls no finder for a loaded module."""
        recorder, loaded_modules, original = self._recorder, self._loaded_modules, builtins.__import__
        follower = self._follower
        #: Absolute path of a file → whether it is user code. An export calls `recording_import` about 100,000 times,
        #: because functions of torch import modules.
        is_user_by_path: dict[str, bool] = {}

        def is_user_file(path: str) -> bool:
            with recorder.ignore_own_reads():
                is_user = recorder.owners.is_user(os.path.abspath(path))
            if os.path.isabs(path):
                is_user_by_path[path] = is_user
            return is_user

        def recording_import(
            name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
        ) -> Any:
            if globals is not None:
                path = globals.get("__file__")
                is_user = is_user_by_path.get(path) if isinstance(path, str) else False
                if is_user or (is_user is None and is_user_file(path)):
                    if follower is not None:
                        follower.saw_import(name, fromlist or (), level)
                    if level == 0 and name in loaded_modules:
                        file = getattr(sys.modules.get(name), "__file__", None)
                        if isinstance(file, str):
                            with recorder.ignore_own_reads():
                                recorder.record_file(file)
            return original(name, globals, locals, fromlist, level)

        builtins.__import__ = recording_import
        self._undo.append(lambda: setattr(builtins, "__import__", original))


class _Finder:
    """The first finder on ``sys.meta_path``. It calls the others, and records the files that they did not find."""

    def __init__(self, recorder: Recorder, roots: Sequence[str], patches: dict[str, Patch]) -> None:
        self._recorder = recorder
        self._roots = frozenset(os.path.abspath(root) for root in roots)
        self._patches = patches
        self._local = threading.local()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if getattr(self._local, "busy", False):
            return None
        self._local.busy = True
        try:
            importer = self._recorder.owners.of(_importing_file())
            is_user_import = importer.kind in ("user", "trtbuild")  # trtbuild imports the source's own module
            if path is None and not is_user_import:  # rule 3: the roots come last
                spec = self._find_with_others(
                    name, None, target, [entry for entry in sys.path if not self._is_root(entry)]
                )
                spec = spec or PathFinder.find_spec(name, [entry for entry in sys.path if self._is_root(entry)], target)
            else:
                spec = self._find_with_others(name, path, target, None)
            with self._recorder.ignore_own_reads():
                if is_user_import or (spec is None and path is None and _are_missing_names_recorded(importer)):
                    self._record_missing_files(name, sys.path if path is None else path, spec, is_user_import)
            if spec is not None and name in self._patches:
                _patch_after_loading(spec, self._patches[name])
            return spec
        finally:
            self._local.busy = False

    def _find_with_others(
        self,
        name: str,
        path: Sequence[str] | None,
        target: ModuleType | None,
        entries_for_path_finder: list[str] | None,
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            search_path = (
                entries_for_path_finder if entries_for_path_finder is not None and finder is PathFinder else path
            )
            spec: ModuleSpec | None = finder.find_spec(name, search_path, target)
            if spec is not None:
                return spec
        return None

    def _is_root(self, entry: str) -> bool:
        return os.path.abspath(entry) in self._roots

    def _record_missing_files(
        self, name: str, searched: Iterable[str], spec: ModuleSpec | None, is_user_import: bool
    ) -> None:
        last_name = name.rpartition(".")[2]
        origin = None if spec is None else spec.origin
        if spec is not None and origin in ("built-in", "frozen"):
            return  # these modules are found before anything on the path
        if spec is None and ("." not in name or _is_namespace(name.rpartition(".")[0])):
            self._recorder.record_distribution(normalized(name))
        if not is_user_import:
            return
        roots_left, is_top_level = set(self._roots), "." not in name
        for entry in searched:
            directory = os.path.abspath(entry)
            if is_top_level and not roots_left:
                self._recorder.record_import(name)
                is_top_level = False
            roots_left.discard(directory)
            if directory == PACKAGE_PARENT and directory not in self._roots:
                continue  # an editable install of trtbuild itself
            if not self._recorder.owners.is_user(directory) and directory not in self._roots:
                if origin is not None and os.path.dirname(origin) == directory:
                    return
                continue
            for candidate in _candidate_files(directory, last_name):
                if origin == candidate:
                    return
                self._recorder.record_file(candidate)


def _is_namespace(name: str) -> bool:
    """Whether the loaded module `name` is a namespace package, to which several distributions may add modules."""
    module = sys.modules.get(name)
    return module is not None and getattr(module, "__file__", None) is None and hasattr(module, "__path__")


def _importing_file() -> str:
    """The file of the nearest frame outside the import system and this module."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        filename = frame.f_code.co_filename
        is_import_system = filename.startswith("<frozen") or f"{os.sep}importlib{os.sep}" in filename
        if not is_import_system and filename != __file__:
            return str(filename)
        frame = frame.f_back
    return "<frozen>"


def _are_missing_names_recorded(importer: FileOwner) -> bool:
    """Whether a name is recorded if `importer`, which is not user code, does not find it.

    Python and torch also try names that do not exist (``_winapi``, ``z3``). Such names need not be recorded: they depend
    only on the platform and on the versions of Python and torch, which are in the key."""
    return importer.kind == "distribution" and importer.distribution != "torch"


def _candidate_files(directory: str, last_name: str) -> list[str]:
    """The files that an import of `last_name` looks for in a directory, in the order of `FileFinder`.

    If the directory of a package does not exist, the path of this directory stands for the ``__init__.py`` in it. The
    suffixes of extension modules depend on how a module is built: ``.abi3.so`` with the limited API, ``.so`` with CMake.
    """
    package = os.path.join(directory, last_name)
    first = os.path.join(package, "__init__.py") if os.path.isdir(package) else package
    return [first, *(package + suffix for suffix in EXTENSION_SUFFIXES), package + ".py"]


def _patch_after_loading(spec: ModuleSpec, patch: Patch) -> None:
    loader: Any = spec.loader
    if loader is None or not hasattr(loader, "exec_module"):
        return
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        patch(module)

    loader.exec_module = exec_module
