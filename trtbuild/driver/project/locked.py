"""Read and write the lock file of a project, and refuse records and keys that differ from it.

Rules
1. A record under a locked key is not used if its digests differ from the locked digests. The lookup counts as a miss, so
   the step runs again. The new record replaces the refused one.
2. There is one exception: some toolchains give other bytes in each build, so another run would not give the locked bytes,
   either. If no remote has the locked record of such a toolchain, the local record is used, with a warning. With
   ``--frozen`` it is refused.
3. A build warns of each engine that it uses and that differs from the lock (`differing_engines`). The build is correct,
   but it is not the locked release.
4. With ``--frozen``, the engines for the locked targets of a locked model must have locked keys. Its package must have one,
   too, if the model has exactly the locked targets (`unlocked_results`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trtbuild.atomic import replacing, write_all
from trtbuild.core.planning.graph import ModelPlan, Step
from trtbuild.core.planning.locks import LOCK_FILE, LOCKED_OUTPUTS, Lock, LockedTarget
from trtbuild.core.recipes.record import Record
from trtbuild.errors import LockFileError, UsageError
from trtbuild.regular import read_regular
from trtbuild.toolchain.libraries import table


@dataclass(frozen=True)
class LockFile:
    """A lock file, and the SHA-256 of its bytes."""

    lock: Lock
    sha256: str


def read(project: Path, path: Path | None = None) -> LockFile | None:
    """The project's lock file, or the lock file at `path`; None if it does not exist. Raises LockFileError."""
    path = path or project / LOCK_FILE
    try:
        data = read_regular(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LockFileError(
            f"it cannot be read: {error.strerror or error}", file=_path_in_errors(project, path)
        ) from error
    from trtbuild.core.planning import lockfile  # imported late: most projects have no lock file

    try:
        text = data.decode().replace("\r\n", "\n")  # git on Windows may have changed the line ends
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise LockFileError("it is not UTF-8", file=_path_in_errors(project, path), line=line) from None
    try:
        return LockFile(lockfile.from_text(text), hashlib.sha256(data).hexdigest())
    except LockFileError as error:
        error.file = _path_in_errors(project, path)
        raise


def write(project: Path, lock: Lock) -> bool:
    """Write the lock file atomically. Returns whether it has changed. Raises UsageError."""
    from trtbuild.core.planning.lockfile import to_text

    path, data = project / LOCK_FILE, to_text(lock).encode()
    try:
        if path.is_file() and path.read_bytes().replace(b"\r\n", b"\n") == data:
            return False
        with replacing(path, durable=True) as descriptor:  # durable, because people commit it
            write_all(descriptor, data)
            with contextlib.suppress(FileNotFoundError):  # a new file gets its mode from the umask
                os.fchmod(descriptor, path.stat().st_mode & 0o777)
    except OSError as error:
        raise UsageError(
            f"{LOCK_FILE} cannot be written: {error.strerror or error}", hint="make the project's directory writable"
        ) from error
    return True


def _path_in_errors(project: Path, path: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.relative_to(project))
    return str(path)


class LockGuard:
    """Refuses records that differ from a lock (rules 1 and 2)."""

    def __init__(self, lock: Lock, *, frozen: bool) -> None:
        self._lock = lock
        self._frozen = frozen
        #: The keys of locked steps for which another run does not give the locked bytes.
        self._not_reproducible = frozenset(
            step.key
            for model in lock.models.values()
            for name, step in model.steps.items()
            if step.outputs and not _is_reproducible(model.targets, name)
        )

    def refusal(self, key: str, record: Record, is_last_resort: bool) -> str | None:
        """The reason why the record under `key` is not used, or None.

        `is_last_resort` means that the record is in the local store, and no remote has a record that matches the lock.
        """
        if is_last_resort and not self._frozen and key in self._not_reproducible:
            return None
        return self._lock.refusal(key, record)


def _is_reproducible(targets: Mapping[str, LockedTarget], step: str) -> bool:
    """Whether another run of a step gives the same bytes. A package is reproducible if all of its engines are."""
    target = step.rpartition("@")[2]
    entries = [targets[target]] if target in targets else targets.values()
    return all(table.FLAVOURS[entry.toolchain].reproducible for entry in entries)


def differing_engines(lock: Lock | None, plans: Iterable[ModelPlan]) -> list[str]:
    """A warning for each engine of `plans` that differs from the lock (rule 3)."""
    if lock is None:
        return []
    warnings = []
    for plan in plans:
        for step in plan.steps.values():
            reason = lock.refusal(step.key, step.record) if step.key is not None and step.record is not None else None
            if reason is not None and step.stage == "engine":
                warnings.append(f"{step.id}: {reason}; `trtbuild lock` locks the engine that is here now")
    return warnings


def unlocked_results(lock: Lock | None, plans: Iterable[ModelPlan], stages: Collection[str]) -> list[Step]:
    """The engines and packages of locked models and targets whose key is not in the lock (rule 4).

    A package is compared only if the plan has exactly the locked targets, because its key contains the targets. `stages`
    are the stages that the command runs.
    """
    unlocked = []
    for plan in plans:
        locked = lock.models.get(plan.model.name) if lock is not None else None
        if locked is None:
            continue
        keys = {step.key for step in locked.steps.values()}
        has_locked_targets = locked.targets.keys() == {target.name for target in plan.model.targets}
        for step in plan.steps.values():
            if step.stage not in LOCKED_OUTPUTS or step.stage not in stages or step.key in keys:
                continue
            is_locked = step.target in locked.targets if step.stage == "engine" else has_locked_targets
            if is_locked:
                unlocked.append(step)
    return unlocked
