"""``--depfile``: what a build depends on, in a file that make (or ninja) includes.

Rules
1. Prerequisites are the manifests and what they include, the lock file, weights, sources that are files, and each file
   that a trace has read and that belongs to no installed distribution: versions are not files, as with gcc's own headers
   and upgrades.
2. A directory that user code has listed is one: its time changes with each entry that comes or goes. So does that of
   ``manifests/`` where every manifest in it counts. What a trace has looked for and not found cannot be one; trtbuild
   itself sees it when it is called.
3. Targets are the index of each package (the last file that is written of it) and each raw plan; or what
   ``--depfile-target`` says, because content that stays the same keeps its time, and so only a stamp is as new as the
   last look (docs/make.md).
4. Names are those that make would use: relative to the directory where trtbuild was called, whatever ``-C`` says, and
   absolute where they are neither below that nor in the project.
5. It is written after a build that went well, at once or not at all, and only if it differs. What a failed build read is
   not known; the depfile of the last good one stays.
6. A model that may not be kept (`Ran.uncacheable`) is out of date each time.
"""

from __future__ import annotations

# Paths are text here: they are compared with what a makefile says.
# ruff: noqa: PTH109, PTH117
import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from trtbuild.core.planning.locks import NAME
from trtbuild.core.planning.model_plan import ModelPlan
from trtbuild.core.recipes.dependency import ABSENT, DIRECTORY, Observation
from trtbuild.driver.answers.report import BuildResult
from trtbuild.driver.project.workspace import Workspace
from trtbuild.driver.up_to_date import make_rules
from trtbuild.errors import UsageError

NOT_FILES = (ABSENT, DIRECTORY, "special")


class Depfile:
    """One depfile, at `path` (relative to where trtbuild was called). `targets` are what `--depfile-target` said."""

    def __init__(self, path: Path, targets: Sequence[str] = ()) -> None:
        """Raises UsageError for a depfile that cannot be written, before anything is built for it."""
        self.path = path
        self._targets = tuple(targets)
        for target in targets:
            if not make_rules.can_be_said(target):
                raise UsageError(
                    f"--depfile-target {target!r}: make can have no target of this name",
                    hint="name a file without = ; | ( ) in it and without a blank at its end",
                )
        if path.is_dir():
            raise UsageError(f"--depfile {path}: it is a directory", hint="name a file, such as build/model.d")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--depfile {path}: {error.strerror}", hint="name a file that can be written") from None

    def write(self, workspace: Workspace, result: BuildResult) -> bool:
        """Write what the models of `result`, a build that went well, depend on. Returns whether the file has changed.

        Raises UsageError when it cannot be written.
        """
        names = _Names(workspace.project)
        plans = result.outcome.plans.values()
        read = [*_manifests(workspace), *(name for plan in plans for name in _read_by(plan, workspace, result))]
        targets = self._targets or [names.of(name) for plan in plans for name in _outputs(plan, workspace)]
        sayable = [target for target in targets if make_rules.can_be_said(target)]
        always = _always(workspace, result)
        text = make_rules.rules(sayable, [names.of(name) for name in read], always=always) if sayable else ""
        return _write(self.path, os.fsencode(text))


class _Names:
    """Rule 4. `project` is absolute."""

    def __init__(self, project: Path) -> None:
        self._project = os.path.normpath(project)
        self._here = os.getcwd()

    def of(self, name: str) -> str:
        """What make calls the file that the project calls `name`."""
        if os.path.isabs(name):
            path = os.path.normpath(name)
            return os.path.relpath(path, self._here) if _below(path, self._here) else path
        path = os.path.join(self._project, name)
        if name == ".." or name.startswith("../"):
            path = os.path.realpath(path)  # the project may be reached through a link
        return os.path.relpath(path, self._here)


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _manifests(workspace: Workspace) -> Iterator[str]:
    from trtbuild.manifest.files import DEFAULT_FILE, DEFAULT_FOLDER  # pydantic, which has been imported by now

    yield from workspace.manifests
    if workspace.lock_file is not None:
        yield NAME
    if not workspace.request.files and DEFAULT_FILE not in workspace.manifests:
        yield DEFAULT_FOLDER


def _read_by(plan: ModelPlan, workspace: Workspace, result: BuildResult) -> Iterator[str]:
    """Names of what a model was made from."""
    model = plan.model
    if model.weights is not None:
        yield model.weights
    if model.source.file is not None:
        yield model.source.file
    ran = result.outcome.ran.get(f"{model.name}/trace")
    for seen in (*plan.observations, *(ran[1].observations if ran else ())):
        if _is_prerequisite(seen, workspace.project):
            yield seen.dependency.name


def _is_prerequisite(seen: Observation, project: Path) -> bool:
    kind = seen.dependency.kind
    if kind == "file":
        return seen.seen not in NOT_FILES
    if kind == "link":  # its time is that of the file behind it, unless make is called with -L
        return seen.seen != ABSENT and (project / seen.dependency.name).is_file()
    return kind == "listing" and seen.seen != ABSENT


def _always(workspace: Workspace, result: BuildResult) -> bool:
    """Whether some step of the build was not kept, now or when it last ran (rule 6)."""
    outcome = result.outcome
    return any(ran.uncacheable for _, ran in outcome.ran.values()) or any(
        workspace.history.uncacheable(step.id) for plan in outcome.plans.values() for step in plan.steps.values()
    )


def _outputs(plan: ModelPlan, workspace: Workspace) -> Iterator[str]:
    package = plan.package
    if package is None or package.record is None:
        return
    for kind, _, files in workspace.files_of(plan.model, package.record):
        if kind in ("package", "triton"):  # the last file names all others, by their digests
            yield files[-1].path
        else:
            yield from (file.path for file in files)


def _write(path: Path, data: bytes) -> bool:
    try:
        if path.is_file() and path.read_bytes() == data:
            return False
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            Path(temporary).chmod(0o666 & ~_umask())
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        raise UsageError(
            f"--depfile {path}: {error.strerror}", hint="what was built is in place; name a file that can be written"
        ) from None
    return True


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
