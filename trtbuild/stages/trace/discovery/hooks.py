"""Record the audit events that Python raises when code opens, links, changes or removes a file, lists a directory, opens a
database, loads a library or forks.

Python cannot remove an audit hook. So a process installs one hook, which ignores events while no recorder is active.
"""

# Paths are strings here, as in the events.
# ruff: noqa: PTH115

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import unquote, urlsplit

from trtbuild.stages.trace.discovery.paths import path_in_directory
from trtbuild.stages.trace.discovery.recording import Recorder
from trtbuild.stages.trace.user_code.frames import find_caller
from trtbuild.stages.trace.user_code.observe import file_digest
from trtbuild.stages.trace.user_code.owners import FileOwners

_active_recorder: Recorder | None = None
_is_installed = False

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR
#: An event of trtbuild itself: a statement attaches a database (rule 4 of `wrappers`).
ATTACHMENT = "trtbuild.sqlite3.attach"
#: Files of Python that list directories to find modules and distributions. These listings are not recorded, because
#: `loader._Finder` records the files that an import looked for and did not find.
_LISTING_FILES = ("zipimport.py", "site.py", "linecache.py", "<frozen zipimport>", "<frozen site>")
#: The names of other such files and packages begin with one of these.
_LISTING_PREFIXES = ("importlib", "<frozen importlib")


def set_recorder(recorder: Recorder | None) -> None:
    """Record events with `recorder` from now on. None ends the recording."""
    global _active_recorder, _is_installed
    _active_recorder = recorder
    if recorder is not None and not _is_installed:
        sys.addaudithook(_audit_hook)
        _is_installed = True


def _audit_hook(event: str, arguments: tuple[Any, ...]) -> None:
    recorder = _active_recorder
    if recorder is None:
        return
    handler = _HANDLERS.get(event)
    if handler is None:
        return
    with recorder.ignore_own_reads() as outermost:
        if outermost:
            try:
                handler(recorder, arguments)
            except Exception as error:  # an error here would be raised by the user's call of open()
                recorder.refuse_storage(f"{event} of {arguments[0]!r} could not be recorded: {error}")


def record_open(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    """Record that a file is opened now. `arguments` are those of the event: path, mode and flags."""
    path, _, flags = arguments
    if isinstance(path, int):  # a file descriptor
        return
    flags = flags if isinstance(flags, int) else 0
    if flags & getattr(os, "O_DIRECTORY", 0):
        recorder.record_listing(path)
        return
    if flags & _WRITE_FLAGS:
        if flags & os.O_EXCL:
            _record_creation(recorder, path)
            return
        if flags & os.O_RDWR and not flags & os.O_TRUNC:
            recorder.record_file(path)  # an existing file is read
        elif flags & os.O_APPEND and not flags & os.O_TRUNC:
            recorder.record_append(path)
        recorder.record_write(path)
        return
    recorder.record_file(path)


def _record_creation(recorder: Recorder, path: Any) -> None:
    """Record a call that creates `path`, and fails if `path` exists. So it also looks whether `path` exists.

    Libraries and ``tempfile`` create files with unique names, so their calls are not dependencies."""
    if os.path.lexists(path):
        recorder.record_file(path)  # the call fails, and user code may go on with the existing file
        return
    caller: Any = sys._getframe(3)  # the caller of `_audit_hook`, or of ``os.open``
    user_frame = find_caller(recorder.owners)
    is_temporary = caller.f_code.co_filename.endswith(f"{os.sep}tempfile.py")
    if user_frame is not None and recorder.owners.is_user(user_frame[0]) and not is_temporary:
        recorder.record_file(path)
    recorder.record_write(path)


def _record_listing(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    path = arguments[0]
    if recorder.drops_records or _is_import_listing(recorder.owners):
        return
    if isinstance(path, int):
        if is_removing_tree(sys._getframe(2)):
            return
        path = os.readlink(f"/proc/self/fd/{path}")
    recorder.record_listing(path)


def is_removing_tree(frame: FrameType) -> bool:
    """Whether `frame` is that of ``shutil.rmtree``, which opens and lists the directories that it removes."""
    return frame.f_code.co_filename.endswith(f"{os.sep}shutil.py")


def _is_import_listing(owners: FileOwners) -> bool:
    """Whether the nearest frame outside trtbuild, which lists a directory now, belongs to the import system.

    Listings by ``pkgutil`` count as those of its caller, because user code that imports all modules of a package depends
    on the list of these modules.
    """
    frame: Any = sys._getframe(3)  # the caller of `_audit_hook`
    while frame is not None and owners.of(frame.f_code.co_filename).kind == "trtbuild":
        frame = frame.f_back
    if frame is not None and frame.f_code.co_filename.endswith("pkgutil.py"):
        while frame is not None and frame.f_code.co_filename.endswith("pkgutil.py"):
            frame = frame.f_back
        return frame is None or not owners.is_user(frame.f_code.co_filename)
    return frame is None or _is_import_system(frame.f_code.co_filename, owners)


def _is_import_system(file: str, owners: FileOwners) -> bool:
    """Whether `file` belongs to the import system. A file of the user does not, even if it is called ``site.py``."""
    owner = owners.of(file).kind
    parts = Path(file).parts[-3:]  # the directories above may have any name
    if owner == "user":
        return False
    return (owner == "python" and parts[-1] in _LISTING_FILES) or any(
        part.startswith(_LISTING_PREFIXES) for part in parts
    )


def _record_import(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    if arguments[1]:  # the event names a file only for extension modules
        recorder.record_file(arguments[1])


def _record_library(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    if isinstance(arguments[0], str) and os.sep in arguments[0]:
        recorder.record_file(arguments[0])


def _record_database(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    path = arguments[0]
    if isinstance(path, str | bytes | os.PathLike):
        name = os.fsdecode(path)
        if name.startswith("file:"):
            name = unquote(urlsplit(name).path)
        if name not in ("", ":memory:"):
            recorder.record_database(name)


def _record_attachment(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    if arguments[0] is None:
        recorder.refuse_storage(
            "the model's code attaches a database whose name is a parameter of the statement: write the name into the "
            "statement, or connect to this database"
        )
    _record_database(recorder, arguments)


def _record_truncation(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    recorder.record_write(arguments[0])


def _record_removal(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    path, descriptor = arguments
    recorder.record_write(path_in_directory(path, descriptor))


def _record_directory(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    path, _, descriptor = arguments
    path = path_in_directory(path, descriptor)
    if not os.path.lexists(path):  # otherwise the call fails: ``os.makedirs(…, exist_ok=True)``
        recorder.record_directory(path)


def _record_rename(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    source, path, source_descriptor, descriptor = arguments
    recorder.record_write(path_in_directory(source, source_descriptor))
    recorder.record_write(path_in_directory(path, descriptor))


def _record_symbolic_link(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    _, path, descriptor = arguments
    # the target does not change, so a later read of it is a dependency
    _record_creation(recorder, path_in_directory(path, descriptor))


def _record_hard_link(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    """Record the creation of a hard link. A reader of the new name gets the bytes of the old one.

    The pin of the old name is a digest, because the link changes its ctime."""
    source, path, source_descriptor, descriptor = arguments
    source = path_in_directory(source, source_descriptor)
    digest = file_digest(os.fsdecode(source))
    if digest is not None:
        recorder.record_file(source, digest)
    _record_creation(recorder, path_in_directory(path, descriptor))


def _record_fork(recorder: Recorder, _: tuple[Any, ...]) -> None:
    """Refuse to store the result if the fork is not trtbuild's own: nothing records what the new process reads."""
    frame: Any = sys._getframe(2)  # the caller of `os.fork`
    while frame is not None and recorder.owners.of(frame.f_code.co_filename).kind in ("python", "ignored"):
        frame = frame.f_back
    is_own = frame is None or recorder.owners.of(frame.f_code.co_filename).kind == "trtbuild"
    if not is_own:
        recorder.refuse_process()


_HANDLERS = {
    "open": record_open,
    "os.listdir": _record_listing,
    "os.scandir": _record_listing,
    "import": _record_import,
    "ctypes.dlopen": _record_library,
    "sqlite3.connect": _record_database,
    ATTACHMENT: _record_attachment,
    "os.fork": _record_fork,
    "os.mkdir": _record_directory,
    "os.remove": _record_removal,
    "os.rmdir": _record_removal,
    "os.truncate": _record_truncation,
    "os.rename": _record_rename,
    "os.link": _record_hard_link,
    "os.symlink": _record_symbolic_link,
}
