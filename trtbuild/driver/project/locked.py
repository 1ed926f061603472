"""The lock file of a project: reading and writing it, and what it refuses.

Rules
1. A record under a locked key whose digests are not the locked ones is not used: it is a miss, and what is built instead
   takes its place.
2. Except a local one of a toolchain whose builds are not reproducible: building it again could not give the locked bytes,
   so every build would build it again. Where no remote has the locked one it is used, with a warning; under ``--frozen`` it
   is refused as well.
3. What a build leaves that is not what the lock names is a warning (`departures`): the build is right, the release is
   another.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trtbuild.core.planning.graph import ModelPlan
from trtbuild.core.planning.locks import NAME, Lock, LockedTarget
from trtbuild.core.recipes.record import Record
from trtbuild.errors import LockFileError, UsageError
from trtbuild.regular import read_regular
from trtbuild.toolchain.libraries import table


@dataclass(frozen=True)
class LockFile:
    """A lock file as it was read. `sha256` is of its bytes."""

    lock: Lock
    sha256: str


def read(project: Path, path: Path | None = None) -> LockFile | None:
    """The project's lock file, or the one at `path`; None where there is none. Raises LockFileError."""
    path = path or project / NAME
    try:
        data = read_regular(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LockFileError(f"it cannot be read: {error.strerror or error}", file=_shown(project, path)) from error
    from trtbuild.core.planning import lockfile  # only where there is one: this is on the way of every plan

    try:
        text = data.decode().replace("\r\n", "\n")  # as git may check it out on Windows
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise LockFileError("it is not UTF-8", file=_shown(project, path), line=line) from None
    try:
        return LockFile(lockfile.from_text(text), hashlib.sha256(data).hexdigest())
    except LockFileError as error:
        error.file = _shown(project, path)
        raise


def write(project: Path, lock: Lock) -> bool:
    """Put the lock in its place, atomically. Returns whether the file has changed. Raises UsageError."""
    from trtbuild.core.planning.lockfile import to_text

    path, data = project / NAME, to_text(lock).encode()
    try:
        if path.is_file() and path.read_bytes().replace(b"\r\n", b"\n") == data:
            return False
        descriptor, temporary = tempfile.mkstemp(dir=project, prefix=f".{NAME}-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(_mode(path))
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        raise UsageError(
            f"{NAME} cannot be written: {error.strerror or error}", hint="make the project's directory writable"
        ) from error
    return True


def _mode(path: Path) -> int:
    """The mode of the file that is there; of a new one, what the umask leaves."""
    with contextlib.suppress(OSError):
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _shown(project: Path, path: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.relative_to(project))
    return str(path)


class LockGuard:
    """What a lock refuses (rules 1 and 2)."""

    def __init__(self, lock: Lock, *, frozen: bool) -> None:
        self._lock = lock
        self._frozen = frozen
        #: Keys that no build here can give the locked bytes for.
        self._lenient = frozenset(
            step.key
            for model in lock.models.values()
            for name, step in model.steps.items()
            if step.outputs and not _is_reproducible(model.targets, name)
        )

    def refusal(self, key: str, record: Record, local: bool) -> str | None:
        """Why the record that was found under `key` is not used, or None. `local`: it is in the local store, and no remote
        has a better one."""
        if local and not self._frozen and key in self._lenient:
            return None
        return self._lock.refusal(key, record)


def _is_reproducible(targets: Mapping[str, LockedTarget], step: str) -> bool:
    """Whether building a step again gives the same bytes: of a package, if that is so for all of its engines."""
    own = step.rpartition("@")[2]
    entries = [targets[own]] if own in targets else targets.values()
    return all(table.FLAVOURS[entry.toolchain].reproducible for entry in entries)


def departures(lock: Lock | None, plans: Iterable[ModelPlan]) -> list[str]:
    """A line for each engine whose record, which is used, is not what the lock names (rule 3). A package is what its
    engines are."""
    if lock is None:
        return []
    said = []
    for plan in plans:
        for step in plan.steps.values():
            refused = lock.refusal(step.key, step.record) if step.key is not None and step.record is not None else None
            if refused is not None and step.stage == "engine":
                said.append(f"{step.id}: {refused}; `trtbuild lock` locks what is here now")
    return said
