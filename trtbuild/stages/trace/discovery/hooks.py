"""The audit hook: Python reports files that are opened, listed, linked and written.

An audit hook cannot be removed. So one hook is installed once in the process. It passes events to the active recorder.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from trtbuild.stages.trace.discovery.recording import Recorder
from trtbuild.stages.trace.user_code.places import Places

_active: Recorder | None = None
_installed = False

_WRITES = os.O_WRONLY | os.O_RDWR
#: Modules that list directories to find modules and distributions. Their listings are not recorded: `loader._Finder`
#: records the names that were not found.
_LISTERS = ("importlib", "zipimport", "site.py", "linecache")


def activate(recorder: Recorder | None) -> None:
    """Send events to `recorder` from now on. None ends the recording."""
    global _active, _installed
    _active = recorder
    if recorder is not None and not _installed:
        sys.addaudithook(_hook)
        _installed = True


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    recorder = _active
    if recorder is None:
        return
    handler = _HANDLERS.get(event)
    if handler is None:
        return
    with recorder.own() as outermost:
        if outermost:
            try:
                handler(recorder, arguments)
            except Exception as error:  # an error here would be raised by the user's call of open()
                recorder.refuse(f"{event} of {arguments[0]!r} could not be recorded: {error}")


def _open(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    path, _, flags = arguments
    flags = flags if isinstance(flags, int) else 0
    if isinstance(path, int):
        return
    if flags & getattr(os, "O_DIRECTORY", 0):
        recorder.directory(path)
        return
    if flags & _WRITES:
        if flags & (os.O_RDWR | os.O_APPEND) and not flags & (os.O_TRUNC | os.O_EXCL):
            recorder.file(path)  # an existing file is read, or appended to
        recorder.wrote(path)
        return
    recorder.file(path)


def _list(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    if not isinstance(arguments[0], int) and not _listed_for_imports(recorder.places):
        recorder.directory(arguments[0])


def _listed_for_imports(places: Places) -> bool:
    """Whether the import system lists this directory, according to the nearest frame outside this package. For
    ``pkgutil`` its caller counts, because user code that imports all modules of a package depends on their list."""
    frame: Any = sys._getframe(3)
    while frame is not None and places.of(frame.f_code.co_filename).owner == "trtbuild":
        frame = frame.f_back
    if frame is not None and frame.f_code.co_filename.endswith("pkgutil.py"):
        while frame is not None and frame.f_code.co_filename.endswith("pkgutil.py"):
            frame = frame.f_back
        return frame is None or not places.is_user(frame.f_code.co_filename)
    return frame is None or any(part in frame.f_code.co_filename for part in _LISTERS)


def _import(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    if arguments[1]:  # the event names a file only for extension modules
        recorder.file(arguments[1])


def _library(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    if isinstance(arguments[0], str) and os.sep in arguments[0]:
        recorder.file(arguments[0])


def _database(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    path = arguments[0]
    if isinstance(path, str | bytes | os.PathLike):
        name = os.fsdecode(path)
        if name not in ("", ":memory:"):
            recorder.file(name.removeprefix("file:").split("?", 1)[0])


def _changed(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    recorder.wrote(arguments[0])


def _moved(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    recorder.wrote(arguments[0])
    recorder.wrote(arguments[1])


_HANDLERS = {
    "open": _open,
    "os.listdir": _list,
    "os.scandir": _list,
    "import": _import,
    "ctypes.dlopen": _library,
    "sqlite3.connect": _database,
    "os.mkdir": _changed,
    "os.remove": _changed,
    "os.rmdir": _changed,
    "os.truncate": _changed,
    "os.rename": _moved,
    "os.link": _moved,
    "os.symlink": _moved,
}
