"""The null build: a ``trtbuild build`` that finds nothing to do takes little more time than a start of Python.

The same holds for a ``trtbuild plan`` that finds nothing to run.

A build or plan that finds everything up to date writes a *snapshot*: its output, and everything that the output depends on
(`trtbuild.driver.up_to_date.snapshot` writes it). The next call with the same command line checks the snapshot with
`os.stat` and `os.readlink`, without reading the files that it names, and prints the output again. If any check fails, the
whole program runs, and its answer is always right.

Rules
1. This module imports only a few modules of the standard library: sys, os, time, json and binascii, and hashlib if it has
   to compare an environment variable that may be a secret.
2. Each command line has its own snapshot. The file's name is a checksum of the working directory, the arguments and the
   settings of the output. The file also contains these values themselves, and they are compared. So this module does not
   have to understand the arguments, except ``-C``. Even if it misreads ``-C``, it never uses the snapshot of another
   command line.
3. These values are compared: the format, the interpreter (version, prefix, ``sys.path``), the environment variables that a
   trace has read, and the environment variables that trtbuild uses. Also compared are the settings of the output (such as
   colours), and the current time with the day on which the first trusted key expires. These files and directories, in the
   project and elsewhere, are compared:
   * by identity (size, mtime, ctime, inode): trtbuild's own sources, the user's configuration, manifests, weights, every
     file that a trace has read, and every file of every output;
   * by times and inode: every directory that was listed, the directories of ``sys.path`` (installing a package changes
     them), and the directory that is searched for manifests;
   * by their targets: symbolic links;
   * by their existence: paths that must not exist, and paths that must be directories. The directory of the cache must also
     have the same inode.
4. The identity of a file is recorded only if the content was read while the file had this identity. The file's times must
   also be older than one tick of the file system's clock. So a file that is edited later gets another identity.
5. A snapshot can be deleted at any time. It is replaced as a whole. A snapshot that cannot be read is ignored.
6. For a build, entries of the cache and remotes are not checked. As with make, an output stays up to date if the cache
   entries that it was made from are deleted. For a plan, the times of the cache's directories are compared (with the
   directories of rule 3). So a plan is made again after an entry was added or removed. The bytes of entries are not read.
7. Values of variables may be secrets (a signing key, a password in a URL), so a snapshot has only their digests. The
   variables of `PUBLIC_VARIABLES` are never secrets, so a snapshot has their values.
"""

# Paths are strings here, because importing pathlib takes longer than the whole check.
# ruff: noqa: PTH109

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # importing it from typing would take longer than a thousand calls of stat
if TYPE_CHECKING:
    from typing import Any

SNAPSHOT_FORMAT = 3

#: The start of this process in ns: the time now, less the CPU time of the process. The process may also have waited for
#: disks and processors, so the real start may be earlier. This module computes the value, because later imports may wait
#: for seconds.
STARTED_NS = time.time_ns() - time.process_time_ns()

#: The commands that write snapshots.
COMMANDS = ("build", "plan")

#: The directory of snapshots in the project, with one file for each command line.
SNAPSHOT_FOLDER = ".trtbuild/null"

#: The placeholder in the output for the seconds that the build took.
DURATION_PLACEHOLDER = "\0"

#: Environment variables that trtbuild uses: these, and all variables that begin with the prefix.
OWN_VARIABLES = ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
OWN_PREFIX = "TRTBUILD_"

#: The variables that trtbuild uses and that are never secrets. They are compared without hashlib, whose import takes time.
PUBLIC_VARIABLES = (
    *OWN_VARIABLES,
    "TRTBUILD_CACHE_DIR",
    "TRTBUILD_CONFIG",
    "TRTBUILD_CACHE_MAX_SIZE",
    "TRTBUILD_DOMAIN",
)

#: Environment variables that change the look of a program's output.
OUTPUT_VARIABLES = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TERM", "COLUMNS", "CI")

ABSENT = "absent"


def answer(arguments: list[str]) -> int | None:
    """Print the output of the last command with these arguments if its snapshot is current, and return the exit code.

    Returns None if the whole program has to run. In GitHub Actions the whole program always has to run, because it writes
    the job summary.
    """
    start_s = time.perf_counter()
    if (
        not any(command in arguments for command in COMMANDS)
        or sys.stdout is None
        or os.environ.get("GITHUB_STEP_SUMMARY")
    ):
        return None
    try:
        directory = os.getcwd()
        project = project_directory(arguments)
        snapshot, text = _read(os.path.join(project, SNAPSHOT_FOLDER, snapshot_name(directory, arguments)))
        if not _is_for_this_call(snapshot, directory, arguments) or not _is_current(snapshot, project):
            return None
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None
    try:
        sys.stdout.write(text.replace(DURATION_PLACEHOLDER, f"{time.perf_counter() - start_s:.3f}", 1))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has closed the pipe, but the build is up to date
        null_device = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_device, sys.stdout.fileno())  # otherwise Python's flush at exit would fail
        return 0
    except (OSError, ValueError):  # such as a full disk, which the whole program then reports
        return None
    return 0


def snapshot_name(directory: str, arguments: list[str]) -> str:
    """The file name of the snapshot for a command line."""
    from binascii import crc32

    words = [directory, *arguments, *output_settings().values()]
    return f"{crc32(os.fsencode(chr(0).join(words))):08x}"


def interpreter() -> list[str]:
    """The version, prefix and module path of the Python interpreter."""
    return [sys.version, sys.prefix, *sys.path]


def own_variables() -> dict[str, str]:
    """The values of the environment variables that trtbuild uses, by name.

    If the value of a variable may be a secret, the result has its digest in place of the value.
    """
    return {
        name: value if name in PUBLIC_VARIABLES else variable_digest(name)
        for name, value in os.environ.items()
        if name.startswith(OWN_PREFIX) or name in OWN_VARIABLES
    }


def output_settings() -> dict[str, str]:
    """The values that the look of the output depends on: variables, size of the terminal, encoding."""
    terminal = sys.stdout.isatty()
    variables = {name: os.environ[name] for name in OUTPUT_VARIABLES if name in os.environ}
    size = str(os.get_terminal_size(1)) if terminal else "no terminal"
    return {**variables, "size": size, "encoding": str(sys.stdout.encoding)}


def variable_digest(name: str) -> str:
    """The SHA-256 of an environment variable's value, or ``absent``."""
    value = os.environ.get(name)
    if value is None:
        return ABSENT
    from hashlib import sha256

    return sha256(value.encode("utf-8", "surrogateescape")).hexdigest()


def identity(status: os.stat_result) -> list[int]:
    """The identity of a file. Every change of its content changes the identity (rule 4)."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def directory_identity(status: os.stat_result) -> list[int]:
    """The identity of a directory. Adding or removing an entry changes the identity."""
    return [status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def project_directory(arguments: list[str]) -> str:
    """The project's directory: the value of the last ``-C``, or the working directory."""
    project = "."
    for position, word in enumerate(arguments):
        if word == "-C":
            project = arguments[position + 1]
        elif word.startswith("-C"):
            project = word[2:]
    return project


def _read(path: str) -> tuple[dict[str, Any], str]:
    """Read a snapshot and the output from a file: one line of JSON, then the output. Raises OSError or ValueError."""
    import json

    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # O_NONBLOCK: opening a pipe does not wait
        head, _, tail = file.read().partition(b"\n")
    snapshot, text = json.loads(head), tail.decode("utf-8", "surrogateescape")
    if len(text) != snapshot["length"]:
        raise ValueError("the file is incomplete")
    return snapshot, text


def _is_for_this_call(snapshot: dict[str, Any], directory: str, arguments: list[str]) -> bool:
    """Whether the command line, the interpreter, the variables and the output's settings are those of the snapshot."""
    return (
        snapshot["format"] == SNAPSHOT_FORMAT
        and snapshot["directory"] == directory
        and snapshot["arguments"] == arguments
        and snapshot["interpreter"] == interpreter()
        and snapshot["own"] == own_variables()
        and (snapshot["until_s"] is None or time.time() < snapshot["until_s"])
        and snapshot["looks"] == output_settings()
        and all(variable_digest(name) == digest for name, digest in snapshot["variables"].items())
    )


def _is_current(snapshot: dict[str, Any], project: str) -> bool:
    """Whether all files, directories and links that the snapshot names are unchanged."""
    stat = os.stat
    folder = os.open(project, os.O_RDONLY | os.O_DIRECTORY)  # paths in the snapshot are relative to it, or absolute
    try:
        for path, size, mtime_ns, ctime_ns, inode in snapshot["files"]:
            status = stat(path, dir_fd=folder)
            if (
                status.st_mtime_ns != mtime_ns
                or status.st_size != size
                or status.st_ctime_ns != ctime_ns
                or status.st_ino != inode
            ):
                return False
        for path, *recorded_identity in snapshot["listings"]:
            if directory_identity(stat(path, dir_fd=folder)) != recorded_identity:
                return False
        for path, target in snapshot["links"]:
            if os.readlink(path, dir_fd=folder) != target:
                return False
        for path, inode in snapshot["directories"]:
            status = stat(path, dir_fd=folder)
            if status.st_mode & 0o170000 != 0o040000 or (inode and status.st_ino != inode):
                return False
        return all(_is_absent(path, folder) for path in snapshot["absent"])
    finally:
        os.close(folder)


def _is_absent(path: str, folder: int) -> bool:
    try:
        os.lstat(path, dir_fd=folder)  # lstat, because a broken link (to a manifest, for example) exists, too
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False
