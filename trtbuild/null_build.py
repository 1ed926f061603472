"""The null build: a ``trtbuild build`` that finds nothing to do takes little more time than a start of Python.

The same holds for a ``trtbuild plan`` that finds nothing to run.

A successful build, or a plan that finds nothing to run, writes a *snapshot* (`trtbuild.driver.up_to_date.snapshot`). A
snapshot contains the output of the next null build or plan, and the state of everything that this output depends on. The
next call with the same command line checks the snapshot with `os.stat`, `os.lstat` and `os.readlink`, without reading the
files that the snapshot names, and prints the output. If any check fails, the whole program runs, and its answer is always
right.

Rules
1. This module imports only gc, os, sys and time, and hashlib if it has to compare an environment variable that may be a
   secret. An import of json or re takes as long as the checks of hundreds of files.
2. Each command line has its own snapshot. The file's name is a hash of the working directory, the arguments and the
   settings of the output. The file also contains these values themselves, and they are compared. So this module does not
   have to understand the arguments, except ``-C``. Even if it misreads ``-C``, it never uses the snapshot of another
   command line.
3. These values are compared: the format, the interpreter (version, prefix, ``sys.path``), the environment variables that a
   trace has read, and the environment variables that trtbuild uses. Also compared are the settings of the output (such as
   colours), and the current time with the day on which the next trusted key expires. These files and directories, in the
   project and elsewhere, are compared:
   * by identity (size, mtime, ctime, inode): trtbuild's own sources, the user's configuration and keys, manifests, the lock
     file, weights, libraries of plugins, every file that a trace has read, and every file of every output;
   * by identity, too: every directory that was listed, the directories of ``sys.path`` (installing a package changes them),
     and the directory that is searched for manifests;
   * by their targets: symbolic links;
   * by their existence: paths that must not exist, and paths that must be directories. The directories of the cache and of
     its records must also have the same inodes.
4. The identity of a file is recorded only if the content was read while the file had this identity. The last change of the
   file must also be at least one tick of the file system's clock before this read. So a file that is edited later gets
   another identity.
5. A snapshot can be deleted at any time. It is replaced as a whole. A snapshot that cannot be read is ignored.
6. For a build, entries of the cache and remotes are not checked. As with make, an output stays up to date if the cache
   entries that it was made from are deleted. For a plan, the directories of the cache are also compared by identity.
   So a plan is made again after an entry was added or removed. The bytes of entries are not read.
7. Environment variables may be secrets (a signing key, a password in a URL), so a snapshot has only their digests. The
   variables in `PUBLIC_VARIABLES` and `OUTPUT_VARIABLES` are never secrets, so a snapshot has their values.
"""

# Paths are strings here, because importing pathlib takes longer than the whole check.
# ruff: noqa: PTH109

import gc
import os
import sys
import time

TYPE_CHECKING = False  # importing it from typing would take longer than a thousand calls of stat
if TYPE_CHECKING:
    from typing import Any

#: The version of the file's layout, which `_read` describes. It is a part of `call_line`.
SNAPSHOT_FORMAT = 4

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

#: The largest prime of 64 bits. A remainder is a sufficient hash for names, and needs no import.
_PRIME = 2**64 - 59


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
        snapshot = _read(os.path.join(project, SNAPSHOT_FOLDER, snapshot_name(directory, arguments)))
        if not _is_for_this_call(snapshot, directory, arguments) or not _is_current(snapshot, project):
            return None
        text = snapshot["output"].decode("utf-8", "surrogateescape")
    except (OSError, ValueError, TypeError, IndexError):
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
    gc.freeze()  # otherwise the garbage collections at exit would visit all objects of the standard library
    return 0


def snapshot_name(directory: str, arguments: list[str]) -> str:
    """The file name of the snapshot for a command line."""
    words = [directory, *arguments, *output_settings().values()]
    return f"{int.from_bytes(os.fsencode(chr(0).join(words)), 'big') % _PRIME:016x}"


def call_line(directory: str, arguments: list[str]) -> str:
    """The values of rules 2 and 3 that this process has without reading files, in one line of ASCII."""
    variables, settings = sorted(own_variables().items()), sorted(output_settings().items())
    return ascii([SNAPSHOT_FORMAT, directory, arguments, interpreter(), variables, settings])


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
    """The values that the look of the output depends on: environment variables, size of the terminal, encoding."""
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
    """The identity of a file or directory. Every change of a file's content changes the identity (rule 4).

    Adding or removing an entry of a directory changes the identity of the directory."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def project_directory(arguments: list[str]) -> str:
    """The project's directory: the value of the last ``-C``, or the working directory."""
    project = "."
    for position, word in enumerate(arguments):
        if word == "-C":
            project = arguments[position + 1]
        elif word.startswith("-C"):
            project = word[2:]
    return project


def _read(path: str) -> "dict[str, Any]":
    """Read a snapshot. Raises OSError, ValueError or TypeError.

    The first line of the file is `call_line`. The second has the time in seconds at which the snapshot expires, or
    ``inf``, and the sizes of the next two parts in bytes: names, and the output. The names are five lists, with two zero
    bytes between lists and one between names: variables with their digests, files, links with their targets, directories,
    and absent paths. The rest are native 64-bit integers: the sizes of all files, all mtimes, all ctimes, and the inodes of
    files and directories. Only the inodes are unsigned. Paths are bytes, because `os.stat` would have to encode a string.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # O_NONBLOCK: opening a pipe does not wait
        call, sizes, rest = file.read().split(b"\n", 2)
    until_s, names_size, output_size = sizes.split()
    names_end = int(names_size)
    output_end = names_end + int(output_size)
    lists = rest[:names_end].split(b"\0\0")
    variables, files, links, directories, absent = [names.split(b"\0") if names else [] for names in lists]
    count = len(files)
    numbers = memoryview(rest)[output_end:]
    signed, inodes = numbers[: 24 * count].cast("q").tolist(), numbers[24 * count :].cast("Q").tolist()
    if len(inodes) != count + len(directories):
        raise ValueError("the file is incomplete")
    return {
        "call": call.decode("ascii"),
        "until_s": float(until_s),
        "variables": zip(variables[::2], variables[1::2], strict=True),
        "files": zip(files, signed[:count], signed[count : 2 * count], signed[2 * count :], inodes, strict=False),
        "links": zip(links[::2], links[1::2], strict=True),
        "directories": zip(directories, inodes[count:], strict=True),
        "absent": absent,
        "output": rest[names_end:output_end],
    }


def _is_for_this_call(snapshot: "dict[str, Any]", directory: str, arguments: list[str]) -> bool:
    """Whether the command line, the interpreter, the variables and the output's settings are those of the snapshot, and the
    snapshot has not expired."""
    return (
        snapshot["call"] == call_line(directory, arguments)
        and time.time() < snapshot["until_s"]
        and all(variable_digest(os.fsdecode(name)).encode() == digest for name, digest in snapshot["variables"])
    )


def _is_current(snapshot: "dict[str, Any]", project: str) -> bool:
    """Whether all files, directories and links of the snapshot are unchanged, and its absent paths are still absent."""
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


def _is_absent(path: bytes, folder: int) -> bool:
    try:
        os.lstat(path, dir_fd=folder)  # lstat, because a broken link (to a manifest, for example) exists, too
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False
