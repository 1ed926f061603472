"""The null build: a ``trtbuild build`` that has nothing to do costs about what starting Python costs.

A build after which everything was up to date leaves a *standing*: all that its answer depends on, and the answer
(`trtbuild.driver.up_to_date.snapshot` writes it). The next call of the same command line compares that with `os.stat`
alone, and gives the answer again. Whatever is not certain falls through to the whole program, which is always right.

Rules
1. Nothing but the standard library is imported here, and of that little: sys, os, time, json and binascii, and hashlib
   where an environment variable has to be compared.
2. One standing for each command line: its name is a checksum of the working directory and the arguments, which are in it
   in full and compared. So no flag has to be understood here; what a misread ``-C`` finds is no standing of this call.
3. Compared are: this format, the interpreter (version, prefix, ``sys.path``), the environment variables that a trace has
   read and those that trtbuild goes by, how the answer is to look, the day on which the first trusted key expires, and
   below the project or elsewhere
   * by identity (size, mtime, ctime, inode): trtbuild's own sources, the user's configuration, manifests, weights, every
     file that a trace has read, and every file of every output;
   * by times and inode: every directory that was listed, those of ``sys.path`` (an installation changes them) and the
     one where manifests are looked for;
   * links by where they point, what must not be there, what must be a directory, and that the cache is the same one.
4. An identity is written down only for content that was looked at while the file had it, and only if the file's times
   were older than its file system's clock can tell apart: a later edit cannot have the same identity.
5. A standing is deletable at any time, and replaced whole. One that cannot be read is none.
6. The cache's entries are not looked at, and no remote is asked: as with make, what is in place stays in place when what
   it came from is collected.
7. Values of variables may be secrets (a signing key, a password in a URL): a standing holds their digests.
"""

# Paths are strings here: pathlib costs more than all of this.
# ruff: noqa: PTH109

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # importing it from typing would cost more than a thousand calls of stat
if TYPE_CHECKING:
    from typing import Any

FORMAT = 3

#: When this process began to read what it goes by, in ns. This is the first module of trtbuild that is read: what comes
#: after it may wait for disks and processors for seconds.
STARTED_NS = time.time_ns() - time.process_time_ns()

#: Below the project: a directory with one file for each command line.
FOLDER = ".trtbuild/null"

#: In an answer: the seconds that it took.
DURATION = "\0"

#: Variables that trtbuild goes by: these, and all that begin with the prefix.
OWN_VARIABLES = ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
OWN_PREFIX = "TRTBUILD_"

#: Those of them that hold no secret: rule 7 costs the import of hashlib.
PLAIN_VARIABLES = (
    *OWN_VARIABLES,
    "TRTBUILD_CACHE_DIR",
    "TRTBUILD_CONFIG",
    "TRTBUILD_CACHE_MAX_SIZE",
    "TRTBUILD_DOMAIN",
)

#: Variables by which programs decide how what they print has to look.
LOOKS = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TERM", "COLUMNS", "CI")

ABSENT = "absent"


def answer(arguments: list[str]) -> int | None:
    """Give the answer of the last build with these arguments, if it stands. None: ask the whole program, which also
    writes the job summary of GitHub Actions."""
    started = time.perf_counter()
    if "build" not in arguments or sys.stdout is None or os.environ.get("GITHUB_STEP_SUMMARY"):
        return None
    try:
        directory = os.getcwd()
        project = _project(arguments)
        standing, text = _read(os.path.join(project, FOLDER, name_of(directory, arguments)))
        if not _is_of_this_call(standing, directory, arguments) or not _stands(standing, project):
            return None
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None
    try:
        sys.stdout.write(text.replace(DURATION, f"{time.perf_counter() - started:.3f}", 1))
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has enough, and the build is done
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # for what Python writes when the process ends
        return 0
    except (OSError, ValueError):  # the whole program knows what to do about a full disk
        return None
    return 0


def name_of(directory: str, arguments: list[str]) -> str:
    """The file name of the standing of a command line."""
    from binascii import crc32

    words = [directory, *arguments, *looks().values()]
    return f"{crc32(os.fsencode(chr(0).join(words))):08x}"


def interpreter() -> list[str]:
    """What runs this."""
    return [sys.version, sys.prefix, *sys.path]


def own_variables() -> dict[str, str]:
    """The environment variables that trtbuild itself goes by; by digest where they may be secrets."""
    return {
        name: value if name in PLAIN_VARIABLES else variable_digest(name)
        for name, value in os.environ.items()
        if name.startswith(OWN_PREFIX) or name in OWN_VARIABLES
    }


def looks() -> dict[str, str]:
    """What the looks of an answer depend on."""
    terminal = sys.stdout.isatty()
    found = {name: os.environ[name] for name in LOOKS if name in os.environ}
    size = str(os.get_terminal_size(1)) if terminal else "no terminal"
    return {**found, "size": size, "encoding": str(sys.stdout.encoding)}


def variable_digest(name: str) -> str:
    """SHA-256 of a variable's value (values may be secrets), or ``absent``."""
    value = os.environ.get(name)
    if value is None:
        return ABSENT
    from hashlib import sha256

    return sha256(value.encode("utf-8", "surrogateescape")).hexdigest()


def identity(found: os.stat_result) -> list[int]:
    """What tells a file's content from what it had before or has later, by rule 4."""
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def directory_identity(found: os.stat_result) -> list[int]:
    """As `identity`: changes with every entry that comes or goes."""
    return [found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _project(arguments: list[str]) -> str:
    """The project's directory as ``-C`` gives it: the last one counts."""
    project = "."
    for position, word in enumerate(arguments):
        if word == "-C":
            project = arguments[position + 1]
        elif word.startswith("-C"):
            project = word[2:]
    return project


def _read(path: str) -> tuple[dict[str, Any], str]:
    """A standing: one line of JSON, and the answer."""
    import json

    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # nobody waits for a pipe
        head, _, tail = file.read().partition(b"\n")
    standing, text = json.loads(head), tail.decode("utf-8", "surrogateescape")
    if len(text) != standing["length"]:
        raise ValueError("a torn file")
    return standing, text


def _is_of_this_call(standing: dict[str, Any], directory: str, arguments: list[str]) -> bool:
    return (
        standing["format"] == FORMAT
        and standing["directory"] == directory
        and standing["arguments"] == arguments
        and standing["interpreter"] == interpreter()
        and standing["own"] == own_variables()
        and (standing["until_s"] is None or time.time() < standing["until_s"])
        and standing["looks"] == looks()
        and all(variable_digest(name) == digest for name, digest in standing["variables"].items())
    )


def _stands(standing: dict[str, Any], project: str) -> bool:
    """Whether all that can be looked at by name is as it was."""
    stat = os.stat
    folder = os.open(project, os.O_RDONLY | os.O_DIRECTORY)  # names are relative to it, or absolute
    try:
        for path, size, mtime_ns, ctime_ns, inode in standing["files"]:
            found = stat(path, dir_fd=folder)
            if (
                found.st_mtime_ns != mtime_ns
                or found.st_size != size
                or found.st_ctime_ns != ctime_ns
                or found.st_ino != inode
            ):
                return False
        for path, *known in standing["listings"]:
            if directory_identity(stat(path, dir_fd=folder)) != known:
                return False
        for path, target in standing["links"]:
            if os.readlink(path, dir_fd=folder) != target:
                return False
        for path, inode in standing["directories"]:
            found = stat(path, dir_fd=folder)
            if found.st_mode & 0o170000 != 0o040000 or (inode and found.st_ino != inode):
                return False
        return all(_absent(path, folder) for path in standing["absent"])
    finally:
        os.close(folder)


def _absent(path: str, folder: int) -> bool:
    try:
        os.lstat(path, dir_fd=folder)  # a link to nothing is there, too: the manifest may be one
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False
