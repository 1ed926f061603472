"""The files that differ between a commit of git and the working tree.

Rules
1. Uncommitted changes are included, and so are new files that git does not ignore. A renamed file counts as a deleted file
   and an added file.
2. If the commit or the files of a submodule have changed, the submodule is one changed path. Each path below it counts as
   changed, too.
3. git is called without external diff programs and without a pager. Each call has a time limit.
4. In a hook of a linked worktree, git sets ``GIT_DIR``. Then git takes the working directory as the root of the
   repository, so a project in a folder would have other paths. The variables of hooks are left out if git finds the same
   repository without them. Otherwise they stay, because the user wants the repository that ``GIT_DIR`` names.
   They also stay if ``GIT_WORK_TREE`` is set, because it names the root of the repository.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtbuild.errors import EnvironmentFault, UsageError

_TIMEOUT_S = 120.0

#: Variables that git sets for its hooks (rule 4).
_HOOK_VARIABLES = ("GIT_DIR", "GIT_INDEX_FILE", "GIT_PREFIX")


@dataclass(frozen=True)
class Changes:
    """The changes since a commit. All paths are absolute, without symbolic links above the repository's root.

    `paths` maps each changed path to git's letter: A (added), D (deleted), M (modified), T (another type).
    `tracked` are the files that git tracks now. `directories` are the directories in the commit."""

    commit: str
    root: str
    paths: Mapping[str, str]
    tracked: frozenset[str]
    directories: frozenset[str]

    def has_changed_parent(self, path: str) -> bool:
        """Whether a directory above `path` is a changed path, such as a changed submodule."""
        return any(str(parent) in self.paths for parent in Path(path).parents)

    def reports(self, path: str) -> bool:
        """Whether git reports a change of the file `path`. It does this for a tracked file, for a file of a tracked
        submodule, and for a new file that it does not ignore."""
        is_known = path in self.tracked or path in self.paths
        return is_known or any(str(parent) in self.tracked for parent in Path(path).parents)

    def has_other_entries(self, directory: str) -> bool:
        """Whether entries of `directory` may have been added or removed since the commit."""
        for path, letter in self.paths.items():
            if letter in "AD" and path.startswith(f"{directory}/"):
                entry = f"{directory}/{path[len(directory) + 1 :].partition('/')[0]}"
                is_new_folder = letter == "A" and entry not in self.directories
                if path == entry or is_new_folder or not Path(entry).exists():  # a missing folder was deleted
                    return True
        return False

    def existed_as_directory(self, path: str) -> bool:
        return path in self.directories

    def is_new_directory(self, path: str) -> bool:
        """Whether `path` is a directory of the repository that did not exist in the commit, and has new files now."""
        is_new = path.startswith(f"{self.root}/") and path not in self.directories
        return is_new and any(letter == "A" and added.startswith(f"{path}/") for added, letter in self.paths.items())


def changes_since(project: Path, revision: str) -> Changes:
    """The changes in the repository of `project` since `revision`. Raises UsageError and EnvironmentFault."""
    root = os.fsdecode(
        _git(project, "rev-parse", "--show-toplevel", problem=_no_repository_error(project)).rstrip(b"\n")
    )
    commit = _commit(project, revision)
    top = Path(root)
    options = ("--no-ext-diff", "--no-renames", "--ignore-submodules=none", "--name-status", "-z")
    letters_and_paths = _items(_git(top, "diff", *options, commit, "--"))
    paths = {
        f"{root}/{path}": letter[:1]
        for letter, path in zip(letters_and_paths[::2], letters_and_paths[1::2], strict=True)
    }
    for path in _items(_git(top, "ls-files", "--others", "--exclude-standard", "-z")):
        paths[f"{root}/{path.rstrip('/')}"] = "A"
    tracked = _items(_git(top, "ls-files", "-z"))
    directories = _items(_git(top, "ls-tree", "-r", "-d", "--name-only", "-z", commit))
    return Changes(
        commit,
        root,
        paths,
        frozenset(f"{root}/{path}" for path in tracked),
        frozenset([root, *(f"{root}/{path}" for path in directories)]),
    )


def _commit(project: Path, revision: str) -> str:
    if ".." in revision:
        raise UsageError(
            f"--since {revision!r} is a range", hint="name one commit: the working tree is compared with it"
        )
    shallow = _git(project, "rev-parse", "--is-shallow-repository").strip() == b"true"
    problem = UsageError(
        f"--since {revision!r}: this repository has no such commit",
        hint="the clone is shallow: fetch the commit with git fetch --unshallow, or fetch-depth: 0 of actions/checkout"
        if shallow
        else "name a commit, a branch or a tag; git fetch gets those of the remote",
    )
    arguments = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    return _git(project, *arguments, problem=problem).decode().strip()


def _no_repository_error(project: Path) -> UsageError:
    return UsageError(f"{project} is not in a git repository", hint="affected needs the history of git: use git init")


def _git(folder: Path, *arguments: str, problem: UsageError | None = None) -> bytes:
    """The output of git. If git fails, raises `problem`.

    Raises an error with git's message if `problem` is None, or if git distrusts the repository's owner."""
    command = ["git", "-C", str(folder), "-c", "core.quotePath=false", *arguments]
    environment = {**_git_variables(folder), "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        result = subprocess.run(command, env=environment, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise EnvironmentFault("git is not installed", hint="install git: affected compares commits with it") from None
    except subprocess.TimeoutExpired:
        raise EnvironmentFault(
            f"git {arguments[0]} has not ended after {_TIMEOUT_S:.0f} s", hint=f"try it: {' '.join(command)}"
        ) from None
    if result.returncode == 0:
        return result.stdout
    message = result.stderr.decode(errors="replace").strip()
    if "dubious ownership" in message:
        raise UsageError(
            f"git refuses the repository: {message.splitlines()[0]}", hint="git's safe.directory allows it"
        )
    raise problem or EnvironmentFault(f"git {arguments[0]} failed: {message}", hint=f"try it: {' '.join(command)}")


def _git_variables(folder: Path) -> dict[str, str]:
    """The environment of git in `folder`: that of this process, without the variables of a hook (rule 4)."""
    inherited = dict(os.environ)
    if "GIT_DIR" not in inherited or "GIT_WORK_TREE" in inherited:
        return inherited
    without_hook = {name: value for name, value in inherited.items() if name not in _HOOK_VARIABLES}
    command = ["git", "-C", str(folder), "rev-parse", "--absolute-git-dir"]
    try:
        found = subprocess.run(command, env=without_hook, capture_output=True, timeout=_TIMEOUT_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):  # the command itself then has a better error
        return inherited
    is_same = os.path.realpath(os.fsdecode(found.strip())) == os.path.realpath(inherited["GIT_DIR"])
    return without_hook if is_same else inherited


def _items(output: bytes) -> list[str]:
    """The items of an output of git. Each item ends with a zero byte."""
    return [os.fsdecode(item) for item in output.split(b"\0") if item]
