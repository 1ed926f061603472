"""Wrap functions without an audit event that use files, distributions or processes, while a trace is recorded.

Rules
1. Calls of ``os.stat``, ``lstat``, ``access`` and ``readlink`` are recorded if user code makes them, or if the file is
   inside the project. A call by one of `SETTINGS_LIBRARIES` counts as a call by its caller: python-dotenv looks for a file
   in all directories above the project. ``os.path.exists``, ``Path.exists`` and similar functions call these four
   functions. Calls by ``inspect``, ``linecache`` and ``os.path.samefile`` are not recorded. When Python resolves a path
   (``realpath``), only the symbolic links that it follows are recorded. A time of a file differs in each checkout, so it
   is not a dependency. If user code reads such a time, by these functions or by ``os.fstat``, the trace is not cacheable,
   unless the manifest declares `deps`.
2. The path argument of a function whose C++ or Rust code reads files (`TORCH_READERS`, `READERS`) is a file dependency.
   A function whose C++ or Rust code writes a file (`TORCH_WRITERS`, `WRITERS`) is recorded as a write of this process.
3. ``importlib.metadata``: a lookup of a distribution is a dependency, even if the distribution is not installed. If user
   code searches all distributions, for example for entry points, their names and versions are a dependency.
4. ``sqlite3``: a database that a statement attaches is a dependency. Each new connection gets an authorizer, a function
   that SQLite calls before it attaches a database. SQLite has no other event for this.
5. Reads of other processes are not recorded. So the result is not stored if ``multiprocessing`` starts a process (a
   DataLoader with workers), unless the manifest declares `deps`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import multiprocessing.process
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from trtbuild.stages.trace.discovery.hooks import ATTACHMENT, is_removing_tree, record_open
from trtbuild.stages.trace.discovery.onnx_files import external_files
from trtbuild.stages.trace.discovery.paths import path_in_directory
from trtbuild.stages.trace.discovery.recording import Recorder
from trtbuild.stages.trace.discovery.replacements import Replacements
from trtbuild.stages.trace.discovery.variables import SETTINGS_LIBRARIES, wrap_variables
from trtbuild.stages.trace.user_code.frames import find_caller, find_calling_frame, is_thread_of_python
from trtbuild.stages.trace.user_code.observe import ALL_DISTRIBUTIONS, normalized

#: The backport of ``importlib.metadata``.
BACKPORT = "importlib_metadata"

#: Attributes of `os.stat_result` that change without a change of the file's content.
_TIMES = frozenset({"st_mtime", "st_mtime_ns", "st_ctime", "st_ctime_ns", "ST_MTIME", "ST_CTIME"})

#: Functions of Python that return such an attribute.
_TIME_FUNCTIONS = frozenset({"getmtime", "getctime"})

#: Functions of torch that read a file: (object in torch, function, position of the path argument, name of this argument).
TORCH_READERS: tuple[tuple[str, str, int, str], ...] = (
    ("", "from_file", 0, "filename"),
    ("", "load", 0, "f"),
    ("UntypedStorage", "from_file", 0, "filename"),
    ("jit", "load", 0, "f"),
    ("export", "load", 0, "f"),
    ("ops", "load_library", 0, "path"),
)

#: The same for functions of torch that write a file.
TORCH_WRITERS: tuple[tuple[str, str, int, str], ...] = (
    ("", "save", 1, "f"),
    ("jit", "save", 1, "f"),
    ("export", "save", 1, "f"),
)

_BPE = ((0, "vocab"), (1, "merges"))

#: Module → its functions that read a file: (function, position of the path argument, name of this argument). They are
#: wrapped as soon as the module is imported.
READERS: dict[str, tuple[tuple[str, int, str], ...]] = {
    "safetensors": (("safe_open", 0, "filename"),),
    "safetensors.torch": (("load_file", 0, "filename"), ("safe_open", 0, "filename")),
    "safetensors.numpy": (("load_file", 0, "filename"), ("safe_open", 0, "filename")),
    "cv2": (("imread", 0, "filename"),),
    "h5py": (("File.__init__", 1, "name"),),
    "tokenizers": (
        ("Tokenizer.from_file", 0, "path"),
        *(
            (f"models.BPE.{name}", position, keyword)
            for name in ("from_file", "read_file")
            for position, keyword in _BPE
        ),
        *((f"models.WordLevel.{name}", 0, "vocab") for name in ("from_file", "read_file")),
        *((f"models.WordPiece.{name}", 0, "vocab") for name in ("from_file", "read_file")),
    ),
    "sentencepiece": (("SentencePieceProcessor.Load", 1, "model_file"),),
    "soundfile": (("read", 0, "file"),),
    "torchvision.io": (("read_file", 0, "path"),),
    "torchvision.io.image": (("read_file", 0, "path"),),  # the function that read_image and decode_image call
    "onnxruntime": (("InferenceSession.__init__", 1, "path_or_bytes"),),
    "pyarrow.parquet": (("read_table", 0, "source"),),
    "onnx": (("load", 0, "f"),),
}

#: The modules in `READERS` whose files are ONNX models.
_ONNX_READERS = frozenset({"onnx", "onnxruntime"})

#: The same for functions that write a file. Each of these modules also has readers.
WRITERS: dict[str, tuple[tuple[str, int, str], ...]] = {
    "safetensors.torch": (("save_file", 1, "filename"), ("save_model", 1, "filename")),
    "safetensors.numpy": (("save_file", 1, "filename"),),
    "cv2": (("imwrite", 0, "filename"),),
    "tokenizers": (("Tokenizer.save", 1, "path"),),
    "soundfile": (("write", 0, "file"),),
    "torchvision.io.image": (
        ("write_file", 0, "filename"),
        ("write_png", 1, "filename"),
        ("write_jpeg", 1, "filename"),
    ),
}


class ReaderWrappers:
    """Installs and removes the wrappers."""

    def __init__(self, recorder: Recorder, *, declares_variables: bool = False) -> None:
        """`declares_variables` is whether the manifest declares `env` for the source."""
        self._recorder = recorder
        self._declares_variables = declares_variables
        self._replacements = Replacements()

    def install(self) -> None:
        import torch

        for name in ("stat", "lstat", "access", "readlink"):
            self._replacements.replace(
                os, name, self._wrap_path_function(getattr(os, name), follows_links=name in ("stat", "access"))
            )
        self._wrap_fstat()
        self._wrap_open()
        wrap_variables(self._recorder, self._replacements, declares_variables=self._declares_variables)
        self._wrap_metadata(importlib.metadata.Distribution)
        self._wrap_processes()
        for functions, record in (
            (TORCH_READERS, self._recorder.record_file),
            (TORCH_WRITERS, self._recorder.record_write),
        ):
            for holder, name, position, keyword in functions:
                target = getattr(torch, holder) if holder else torch
                self._wrap_file_function(target, name, position, keyword, record)
        for module, wrap in self.patches().items():
            if module in sys.modules:
                wrap(sys.modules[module])

    def patches(self) -> dict[str, Callable[[ModuleType], None]]:
        """The function that wraps the functions of a module, by the name of the module."""
        return {
            **dict.fromkeys(READERS, self.wrap_module),
            BACKPORT: self.wrap_backport,
            "sqlite3": self.wrap_databases,
        }

    def remove(self) -> None:
        self._replacements.undo()

    def wrap_module(self, module: ModuleType) -> None:
        """Wrap the functions of a module that `READERS` and `WRITERS` list for it."""
        record_read = self._record_onnx_model if module.__name__ in _ONNX_READERS else self._recorder.record_file
        for functions, record in (
            (READERS[module.__name__], record_read),
            (WRITERS.get(module.__name__, ()), self._recorder.record_write),
        ):
            for path, position, keyword in functions:
                *holders, name = path.split(".")
                target: Any = module
                for holder in holders:
                    target = getattr(target, holder, None)
                if target is not None and hasattr(target, name):
                    self._wrap_file_function(target, name, position, keyword, record)

    def _record_onnx_model(self, path: Any) -> None:
        if not self._recorder.drops_records:
            for each_path in (path, *external_files(path)):
                self._recorder.record_file(each_path)

    def _wrap_file_function(
        self, target: Any, name: str, position: int, keyword: str, record: Callable[[Any], None]
    ) -> None:
        recorder, original = self._recorder, getattr(target, name)

        @functools.wraps(original, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            path = args[position] if position < len(args) else kwargs.get(keyword)
            with recorder.ignore_own_reads() as outermost:
                if outermost and isinstance(path, str | bytes | os.PathLike):
                    record(path)
            return original(*args, **kwargs)

        value: Any = call
        if isinstance(target, type) and (
            isinstance(vars(target).get(name), staticmethod) or getattr(original, "__self__", None) is not None
        ):
            value = staticmethod(call)  # `original` takes no self: it is a static function or a bound method
        self._replacements.replace(target, name, value)

    def _wrap_path_function(self, original: Callable[..., Any], *, follows_links: bool) -> Callable[..., Any]:
        recorder = self._recorder

        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            descriptor = kwargs.get("dir_fd")
            if not isinstance(path, int) and not (descriptor is not None and is_removing_tree(sys._getframe(1))):
                with recorder.ignore_own_reads() as outermost:
                    is_recorded = outermost and not recorder.drops_records
                    full_path = path_in_directory(path, descriptor) if is_recorded else path
                    if is_recorded and self._is_path_recorded(full_path):
                        recorder.record_file(full_path, is_lookup=True)
                        self._refuse_time_read()
                    is_link_test = not follows_links or kwargs.get("follow_symlinks") is False  # Path.is_symlink
                    if is_recorded and is_link_test and self._is_link_recorded(full_path):
                        recorder.record_link(full_path, is_user=self._is_called_by_user())
            return original(path, *args, **kwargs)

        call.__name__ = original.__name__
        return call

    def _is_path_recorded(self, path: Any) -> bool:
        """Whether the current call with `path` is recorded (rule 1)."""
        frame: Any = sys._getframe(2)  # the caller of the wrapped function
        if frame.f_code.co_name in ("_joinrealpath", "realpath", "samefile"):
            return False
        if frame.f_code.co_filename.endswith(("linecache.py", "inspect.py")):
            return False
        if self._is_called_by_user():
            return True
        try:
            is_in_project = self._recorder.is_in_project(os.fsdecode(path))
        except (TypeError, ValueError):
            return False
        if not is_in_project:
            self._recorder.note_library_lookup(path)
        return is_in_project

    def _is_called_by_user(self) -> bool:
        """Whether user code makes the current call, or a settings library for user code, or a thread that has no code but
        Python's: then user code has passed the called function to the thread, for example to a ``ThreadPoolExecutor``."""
        owners = self._recorder.owners
        user_frame = find_caller(owners, SETTINGS_LIBRARIES)
        return is_thread_of_python(owners) if user_frame is None else owners.is_user(user_frame[0])

    def _wrap_fstat(self) -> None:
        recorder, original = self._recorder, os.fstat

        def fstat(fd: int) -> os.stat_result:
            with recorder.ignore_own_reads() as outermost:
                if outermost:
                    self._refuse_time_read()
            return original(fd)

        self._replacements.replace(os, "fstat", fstat)

    def _wrap_open(self) -> None:
        """Wrap ``os.open``, because its audit event does not have the argument ``dir_fd``."""
        recorder, original = self._recorder, os.open

        def open_file(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if dir_fd is None:
                return original(path, flags, mode)
            with recorder.ignore_own_reads() as outermost:
                if outermost and not is_removing_tree(sys._getframe(1)):
                    record_open(recorder, (path_in_directory(path, dir_fd), None, flags))
                return original(path, flags, mode, dir_fd=dir_fd)

        self._replacements.replace(os, "open", open_file)

    def _refuse_time_read(self) -> None:
        """Refuse to store the result if user code reads a time of a file (rule 1), as far as the names in its code show."""
        frame = find_calling_frame(self._recorder.owners)
        if frame is None or not self._recorder.owners.is_user(frame.f_code.co_filename):
            return
        caller: Any = sys._getframe(2)  # the caller of the wrapped function
        if not _TIMES.isdisjoint(frame.f_code.co_names) or caller.f_code.co_name in _TIME_FUNCTIONS:
            self._recorder.refuse_time(frame.f_code.co_filename, frame.f_lineno)

    def _is_link_recorded(self, path: Any) -> bool:
        """Whether the current read of a symbolic link is recorded: user code makes it, or the link is in the project. Links
        of a Python environment inside the project are recorded only if user code reads them."""
        if self._is_called_by_user():
            return True
        try:
            name = os.fsdecode(path)
        except (TypeError, ValueError):
            return False
        return self._recorder.is_in_project(name) and not name.startswith(sys.prefix + os.sep)

    def wrap_backport(self, module: ModuleType) -> None:
        """Wrap ``importlib_metadata``, the backport of ``importlib.metadata``, which has another class (rule 3)."""
        self._wrap_metadata(module.Distribution)

    def wrap_databases(self, module: ModuleType) -> None:
        """Wrap ``sqlite3.connect``, whose connections get an authorizer (rule 4)."""
        original = module.connect

        def authorize(action: int, name: str | None, *_: str | None) -> int:
            if action == module.SQLITE_ATTACH:
                sys.audit(ATTACHMENT, name)
            return int(module.SQLITE_OK)

        @functools.wraps(original)
        def connect(*args: Any, **kwargs: Any) -> Any:
            connection = original(*args, **kwargs)
            if isinstance(connection, module.Connection):  # user code may choose another class
                module.Connection.set_authorizer(connection, authorize)
            return connection

        self._replacements.replace(module, "connect", connect)
        self._replacements.replace(module.dbapi2, "connect", connect)

    def _wrap_metadata(self, distribution_class: Any) -> None:
        recorder, original = self._recorder, distribution_class.from_name

        def from_name(cls: Any, name: str) -> Any:
            with recorder.ignore_own_reads():
                if isinstance(name, str):
                    recorder.record_distribution(normalized(name))
            return original(name)

        self._replacements.replace(distribution_class, "from_name", classmethod(from_name))
        discover_originally = distribution_class.discover
        # The frames of the backport do not count. It may be in another distribution, such as setuptools, which has a copy.
        own_file = sys.modules[distribution_class.__module__].__file__
        own_distribution = recorder.owners.of(own_file or "").distribution
        skipped = frozenset({own_distribution} if own_distribution else ())

        def discover(cls: Any, /, **kwargs: Any) -> Any:
            frame = find_caller(recorder.owners, skipped)
            with recorder.ignore_own_reads() as outermost:
                is_search = outermost and kwargs.get("name") is None
                if is_search and frame is not None and recorder.owners.is_user(frame[0]):
                    recorder.record_distribution(ALL_DISTRIBUTIONS)
            return discover_originally(**kwargs)

        self._replacements.replace(distribution_class, "discover", classmethod(discover))

    def _wrap_processes(self) -> None:
        recorder, process_class = self._recorder, multiprocessing.process.BaseProcess
        original = process_class.start

        def start(self: Any) -> None:
            recorder.refuse_process()
            original(self)

        self._replacements.replace(process_class, "start", start)
