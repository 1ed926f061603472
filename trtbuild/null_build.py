"""The null build: a ``trtbuild build`` that finds nothing to do takes little more time than a start of Python.

The same is true of a ``trtbuild plan`` that finds nothing to run.

A successful build, or such a plan, writes a *snapshot* (`trtbuild.driver.up_to_date.snapshot`). It contains the output for
the next call with this command line, and the state of everything that this output depends on. The next call compares this
state with the present one, without reading any other file, and prints the output. If anything differs, the whole program
runs.

Rules
1. This module imports only gc, os, sys and time, and hashlib to compare an environment variable that may be a secret. An
   import of json or re takes as long as the checks of hundreds of files.
2. Each command line has its own snapshot. The name of its file is a hash of the working directory, the arguments and the
   settings of the output, such as colours. The file also contains these values, which are compared. So this module has to
   understand only ``-C`` and the names of `COMMANDS`. Even if it misreads ``-C``, it never uses the snapshot of another
   command line.
3. A snapshot is used only if these are unchanged:
   * its format, the interpreter (version, prefix, ``sys.path``), the environment variables that a trace has read, and
     those that trtbuild uses. No trusted key may have expired since the snapshot was written;
   * the identity (size, mtime, ctime, inode) of trtbuild's own sources, the user's configuration and keys, manifests, the
     lock file, weights and libraries of plugins;
   * the identity of every file that a trace has read, of every file of every output, and of the other files that the build
     wrote (depfile, provenance);
   * the identity of every directory whose entries were listed, of the directories of ``sys.path`` (installing a package
     changes them), and of the directory that is searched for manifests;
   * the targets of symbolic links, and paths that must not be symbolic links;
   * paths that must not exist, and paths that must be directories, among them links in listed directories. The
     directories of the cache and of its records must also have the same inodes.
4. A snapshot has the identity of a file only if the file had this identity when its content was read. At that time, the
   last change was at least one tick of the file system's clock ago. So a later edit always changes the identity. Keys, the
   depfile and provenance files are not read: their identity is that of the moment when the snapshot is written.
5. A snapshot can be deleted at any time. It is replaced as a whole. A snapshot that cannot be read is ignored.
6. For a build, entries of the cache and remotes are not checked: as with make, an output stays up to date if the cache
   entries from which it was made are deleted. For a plan, the directories of the cache are also compared by identity, so a
   plan is made again after an entry was added or removed.
7. Environment variables may be secrets (a signing key, a password in a URL), so a snapshot has only their digests. Those
   in `PUBLIC_VARIABLES` and `OUTPUT_VARIABLES` are never secrets, so it has their values.
"""

# Paths are strings here, because an import of pathlib takes longer than the whole check.
# ruff: noqa: PTH109

import gc
import os
import sys
import time

TYPE_CHECKING = False  # importing it from typing would take longer than a thousand calls of stat
if TYPE_CHECKING:
    from typing import Any

#: The version of the layout of a snapshot, which `_read` describes.
SNAPSHOT_FORMAT = 5

#: The start of this process in ns: the time now, less the CPU time of the process. The real start may be earlier, because
#: the process may also have waited for disks. The value is computed here, before imports that may wait for seconds.
STARTED_NS = time.time_ns() - time.process_time_ns()

#: The commands that write snapshots.
COMMANDS = ("build", "plan")

#: The directory of snapshots in the project, with one file for each command line.
SNAPSHOT_FOLDER = ".trtbuild/null"

#: The placeholder in the output for the seconds that the build took.
DURATION_PLACEHOLDER = "\0"

#: Environment variables that trtbuild uses: these, and all variables that begin with the prefix.
OWN_VARIABLES = ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")
OWN_PREFIX = "TRTBUILD_"

#: Variables that trtbuild uses and that are never secrets. They are compared without hashlib, whose import takes time.
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

#: The largest prime of 64 bits. A remainder is a sufficient hash for the names of files, and needs no import.
_PRIME = 2**64 - 59


def answer(arguments: list[str]) -> int | None:
    """Print the output of the last command with these arguments if its snapshot is current, and return the exit code.

    Returns None if the whole program has to run. In GitHub Actions it always has to run, because it writes the job summary.
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
    except BrokenPipeError:  # the reader of the output has closed the pipe; the build is up to date in spite of this
        null_device = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_device, sys.stdout.fileno())  # otherwise Python's flush at exit would fail
        return 0
    except (OSError, ValueError):  # such as a full disk, which the whole program reports
        return None
    gc.freeze()  # otherwise the garbage collections at exit would visit all objects of the standard library
    return 0


def snapshot_name(directory: str, arguments: list[str]) -> str:
    """The file name of the snapshot for a command line."""
    words = [directory, *arguments, *output_settings().values()]
    return f"{int.from_bytes(os.fsencode(chr(0).join(words)), 'big') % _PRIME:016x}"


def call_line(directory: str, arguments: list[str]) -> str:
    """The first line of a snapshot: the values that the null build can compare without looking at files."""
    variables, settings = sorted(own_variables().items()), sorted(output_settings().items())
    return ascii([SNAPSHOT_FORMAT, directory, arguments, interpreter(), variables, settings])


def interpreter() -> list[str]:
    """The version, prefix and module path of the Python interpreter."""
    return [sys.version, sys.prefix, *sys.path]


def own_variables() -> dict[str, str]:
    """Name of an environment variable that trtbuild uses → its value, or the digest if the value may be a secret."""
    return {
        name: value if name in PUBLIC_VARIABLES else variable_digest(name)
        for name, value in os.environ.items()
        if name.startswith(OWN_PREFIX) or name in OWN_VARIABLES
    }


def output_settings() -> dict[str, str]:
    """The settings that change the look of the output: environment variables, size of the terminal, encoding."""
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
    """The identity of a file or directory.

    It changes when the content of the file changes (rule 4), or when the directory gets or loses an entry."""
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

    The file has these parts:

    1. A line with `call_line`.
    2. A line with the time in seconds at which the snapshot expires (or ``inf``), and the sizes of parts 3 and 4 in bytes.
    3. Six lists of names: variables with their digests, files, links with their targets, directories, absent paths, and
       paths that must not be links. Two zero bytes separate lists, and one separates names.
    4. The output.
    5. Native 64-bit integers: the sizes of all files, their mtimes, their ctimes, and the inodes of files and directories.
       Only the inodes are unsigned.

    Paths are bytes, because `os.stat` would have to encode a string.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # O_NONBLOCK: opening a pipe does not wait
        call, sizes, rest = file.read().split(b"\n", 2)
    until_s, names_size, output_size = sizes.split()
    names_end = int(names_size)
    output_end = names_end + int(output_size)
    lists = rest[:names_end].split(b"\0\0")
    variables, files, links, directories, absent, no_links = [names.split(b"\0") if names else [] for names in lists]
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
        "no_links": no_links,
        "output": rest[names_end:output_end],
    }


def _is_for_this_call(snapshot: "dict[str, Any]", directory: str, arguments: list[str]) -> bool:
    """Whether the snapshot has not expired, and has this command line, interpreter, variables and output settings."""
    return (
        snapshot["call"] == call_line(directory, arguments)
        and time.time() < snapshot["until_s"]
        and all(variable_digest(os.fsdecode(name)).encode() == digest for name, digest in snapshot["variables"])
    )


def _is_current(snapshot: "dict[str, Any]", project: str) -> bool:
    """Whether all files, directories, links and absent paths of the snapshot are unchanged."""
    stat = os.stat
    folder = os.open(project, os.O_RDONLY | os.O_DIRECTORY)  # a path of the snapshot may be relative to this folder
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
        return all(_is_absent(path, folder) for path in snapshot["absent"]) and not any(
            _is_link(path, folder) for path in snapshot["no_links"]
        )
    finally:
        os.close(folder)


def _is_link(path: bytes, folder: int) -> bool:
    try:
        os.readlink(path, dir_fd=folder)
    except OSError:
        return False
    return True


def _is_absent(path: bytes, folder: int) -> bool:
    try:
        os.lstat(path, dir_fd=folder)  # lstat, because a broken link exists, too
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False
