"""``--depfile``: write the dependencies of a build to a file that make or ninja includes.

Rules
1. The prerequisites are the manifests and the files that they include, the lock file, weights files, libraries of plugins,
   and files that are sources, such as ONNX models. Each file that a calibrate or trace step has read is a prerequisite,
   too. Files of installed distributions are left out, as gcc's ``-MMD`` leaves out system headers. So make does not notice
   a changed version of a distribution.
2. A directory that user code has listed is a prerequisite, because its time changes when an entry is added or removed.
   ``manifests/`` is a prerequisite if the build reads all manifests in it, because no manifest was named and there is no
   ``trtbuild.yaml``. A file that user code has looked for and not found cannot be a prerequisite. Only trtbuild itself
   notices when such a file appears.
3. The targets are each engine file of the output ``plans``, each ``.pt2`` file, and the last written file of each package
   (its index) and of each Triton model. ``--depfile-target`` replaces them by other files, usually by one stamp file. An
   output with unchanged content keeps its old time, so only a stamp file shows when make last called trtbuild
   (docs/make.md).
4. Names are relative to the directory where trtbuild was called, even with trtbuild's ``-C``, because make uses such names.
   If trtbuild knows a file by an absolute path, the name stays absolute, unless the file is below the current directory.
5. The depfile is written atomically after a successful build, and only if it changes. A failed build leaves the old
   depfile, because its own list of files is incomplete.
6. If a result must not be cached (`StepRun.uncacheable`), all targets are always out of date.
"""

from __future__ import annotations

# Paths are strings here, because they are compared with names in a makefile.
# ruff: noqa: PTH109, PTH117
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from trtbuild.atomic import replace_file
from trtbuild.core.planning import locks
from trtbuild.core.planning.graph import USER_CODE_STAGES, ModelPlan, step_id
from trtbuild.core.recipes.dependency import ABSENT, DIRECTORY, Observation
from trtbuild.driver.answers.report import BuildResult
from trtbuild.driver.project.workspace import Workspace
from trtbuild.driver.up_to_date import make_rules
from trtbuild.errors import UsageError

NOT_FILE_STATES = (ABSENT, DIRECTORY, "special")


class Depfile:
    """One depfile. `path` is relative to the current directory; `targets` are the values of `--depfile-target`."""

    def __init__(self, path: Path, targets: Sequence[str] = ()) -> None:
        """Create the folder of the depfile. Raises UsageError if the folder cannot be created, if `path` is a directory, or
        if make cannot have one of `targets`."""
        self.path = path
        self._targets = tuple(targets)
        for target in targets:
            if not make_rules.can_be_written(target):
                raise UsageError(
                    f"--depfile-target {target!r}: make cannot have a target with this name",
                    hint="use a name without = ; | ( ) \\ and control characters, and without a space or & at its end",
                )
        if path.is_dir():
            raise UsageError(f"--depfile {path}: it is a directory", hint="name a file, such as build/model.d")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"--depfile {path}: {error.strerror}", hint="name a file in a writable directory"
            ) from None

    def write(self, workspace: Workspace, result: BuildResult) -> bool:
        """Write the dependencies of a successful build. Return whether the depfile has changed.

        A target whose name make cannot read is left out. If no target remains, the depfile is empty.
        Raises UsageError if the depfile cannot be written.
        """
        names = _MakeNames(workspace.project)
        plans = result.outcome.plans.values()
        prerequisites = [
            *_manifest_names(workspace),
            *(name for plan in plans for name in _prerequisites(plan, workspace, result)),
        ]
        targets = self._targets or [
            names.make_name(name) for plan in plans for name in _default_targets(plan, workspace)
        ]
        writable = [target for target in targets if make_rules.can_be_written(target)]
        always = _is_always_outdated(workspace, result)
        text = (
            make_rules.rules_text(writable, [names.make_name(name) for name in prerequisites], always=always)
            if writable
            else ""
        )
        return _write_if_changed(self.path, os.fsencode(text))


class _MakeNames:
    """Converts names of files to the names that make uses (rule 4)."""

    def __init__(self, project: Path) -> None:
        self._project = os.path.normpath(project)
        self._current_directory = os.getcwd()

    def make_name(self, name: str) -> str:
        """Return make's name of the file that is called `name` in the project."""
        has_dot_dot = ".." in name.split("/")
        if os.path.isabs(name):
            path = os.path.realpath(name) if has_dot_dot else os.path.normpath(name)
            return os.path.relpath(path, self._current_directory) if _is_below(path, self._current_directory) else path
        path = os.path.join(self._project, name)
        if has_dot_dot:
            # `..` after a link leads to the parent of the link's target, and the name or the project's path may have a link
            path = os.path.realpath(path)
        return os.path.relpath(path, self._current_directory)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _manifest_names(workspace: Workspace) -> Iterator[str]:
    from trtbuild.manifest.files import DEFAULT_FILE, DEFAULT_FOLDER  # late, because this imports pydantic

    yield from workspace.manifests
    if workspace.lock_file is not None:
        yield locks.LOCK_FILE
    if not workspace.request.files and DEFAULT_FILE not in workspace.manifests:
        yield DEFAULT_FOLDER


def _prerequisites(plan: ModelPlan, workspace: Workspace, result: BuildResult) -> Iterator[str]:
    model = plan.model
    if model.weights is not None:
        yield model.weights
    if model.plugins is not None and model.plugins.library is not None:
        yield model.plugins.library
    if model.source.file is not None:
        yield model.source.file
    observations = list(plan.observations)
    for stage in USER_CODE_STAGES:
        step_and_run = result.outcome.ran.get(step_id(model.name, stage))
        if step_and_run is not None:
            _, run = step_and_run
            observations += run.observations
    for seen in observations:
        if _is_prerequisite(seen, workspace.project):
            yield seen.dependency.name


def _is_prerequisite(seen: Observation, project: Path) -> bool:
    kind = seen.dependency.kind
    if kind == "file":
        return seen.state not in NOT_FILE_STATES
    if kind == "link":  # make uses the time of the linked file, unless it is called with -L
        return seen.state != ABSENT and (project / seen.dependency.name).is_file()
    return kind == "listing" and seen.state != ABSENT


def _is_always_outdated(workspace: Workspace, result: BuildResult) -> bool:
    """Whether a step of this build has, or had in its last run, a result that must not be cached (rule 6)."""
    outcome = result.outcome
    return any(ran.uncacheable for _, ran in outcome.ran.values()) or any(
        workspace.history.uncacheable(step.id) for plan in outcome.plans.values() for step in plan.steps.values()
    )


def _default_targets(plan: ModelPlan, workspace: Workspace) -> Iterator[str]:
    package = plan.package
    if package is None or package.record is None:
        return
    for kind, _, files in workspace.files_of(plan.model, package.record):
        if kind in ("package", "triton"):  # the file that is written last
            yield files[-1].path
        else:
            yield from (file.path for file in files)


def _write_if_changed(path: Path, data: bytes) -> bool:
    try:
        if path.is_file() and path.read_bytes() == data:
            return False
        replace_file(path, data)
    except OSError as error:
        raise UsageError(
            f"--depfile {path}: {error.strerror}",
            hint="the outputs were written; name a depfile in a writable directory",
        ) from None
    return True
