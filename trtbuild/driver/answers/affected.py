"""The command ``affected``: the models that the changes since a git commit affect. It needs neither torch nor TensorRT.

Rules
1. A model is affected if one of these files has changed: a manifest, the lock file, the model's weights file, source file
   or library of plugins, or a file, symbolic link or directory on which its calibration or trace depends.
2. The cache has the dependencies that earlier calibrations and traces have recorded. If one of these steps would run,
   dependencies may be missing, so the model counts as affected. `AffectedModel.text` names the known dependencies that
   have changed or, without such dependencies, the reason why the step would run.
3. In doubt, a model counts as affected, because an unnecessary build has only hits, but a missing build may stay
   undetected.
4. A new file counts as changed, also before ``git add``, because git reports it. git does not report changes of ignored
   files. The document lists the dependencies in the project whose changes git does not report (`AffectedModel.untracked`).
"""

# Paths are strings here, as in recipes.
# ruff: noqa: PTH110, PTH115, PTH117
from __future__ import annotations

import os
from collections.abc import Iterator

from trtbuild.core.planning import locks
from trtbuild.core.planning.graph import USER_CODE_STAGES, ModelPlan, Step, step_id
from trtbuild.core.recipes.dependency import ABSENT, DIRECTORY, Dependency, Observation
from trtbuild.driver.answers.documents import Affected, AffectedCode, AffectedModel
from trtbuild.driver.project.revision import Changes, changes_since
from trtbuild.driver.project.workspace import Workspace


def affected(workspace: Workspace, revision: str) -> Affected:
    """Whether the changes since `revision` affect each requested model, and why.

    Raises UsageError for an unknown revision, and EnvironmentFault if git cannot be used.
    """
    changes = changes_since(workspace.project, revision)
    plans = workspace.plans()
    models = [_affected_model(workspace, plan, changes) for plan in plans.values()]
    return Affected(since=changes.commit, models=models, warnings=workspace.store.warnings())


def _affected_model(workspace: Workspace, plan: ModelPlan, changes: Changes) -> AffectedModel:
    project = os.path.realpath(workspace.project)
    observations = dict.fromkeys(_dependencies(workspace, plan))
    changed = dict.fromkeys(entry.dependency.name for entry in observations if _has_changed(project, entry, changes))
    untracked = [entry.dependency.name for entry in observations if _is_unreported(project, entry, changes)]
    to_run = next((step for step in _user_code_steps(plan) if step.verdict != "hit"), None)
    code: AffectedCode = "unchanged"
    text = "no file that it depends on has changed"
    if changed:
        code, text = "changed", f"changed: {', '.join(list(changed)[:3])}{', …' if len(changed) > 3 else ''}"
    elif to_run is not None:
        code, text = (
            "untraced",
            f"its dependencies are not known, because {to_run.stage} has no result: {to_run.reason.text}",
        )
    return AffectedModel(
        model=plan.model.name,
        affected=code != "unchanged",
        code=code,
        text=text,
        changed=list(changed),
        untracked=untracked,
    )


def _user_code_steps(plan: ModelPlan) -> Iterator[Step]:
    for stage in USER_CODE_STAGES:
        step = plan.steps.get(step_id(plan.model.name, stage))
        if step is not None:
            yield step


def _dependencies(workspace: Workspace, plan: ModelPlan) -> Iterator[Observation]:
    """The files that a model names, and the dependencies of its calibration and trace."""
    model = plan.model
    library = model.plugins.library if model.plugins is not None else None
    for name in (*workspace.manifests, locks.LOCK_FILE, model.weights, model.source.file, library):
        if name is not None:
            yield Observation(Dependency("file", str(name)), "")
    yield from plan.observations


def _has_changed(project: str, observation: Observation, changes: Changes) -> bool:
    """Whether a file, a symbolic link or the list of names in a directory has changed."""
    kind, name = observation.dependency.kind, observation.dependency.name
    if kind not in ("file", "link", "listing"):
        return False
    if kind == "link" and observation.state == ABSENT:  # a test whether the path is a link does not read it
        joined = os.path.normpath(os.path.join(project, name))
        return changes.paths.get(joined, "M") != "M" or changes.has_changed_parent(joined)
    for path in _names_of(os.path.join(project, name)):
        if changes.paths.get(path) is not None or changes.has_changed_parent(path):
            return True
        if kind == "listing" and changes.has_other_entries(path):
            return True
        if observation.state == ABSENT and changes.existed_as_directory(path):
            return True
        if observation.state == DIRECTORY and changes.is_new_directory(path):
            return True
    return False


def _names_of(path: str) -> dict[str, None]:
    """The names of the file at `path`: `path` itself, each symbolic link on the way to the file, and its real path.

    A change of any of these links counts, because a link may lead to a link. For example, ``w.safetensors`` leads to
    ``releases/current/w.safetensors``, and the link ``current`` is changed."""
    names = {os.path.normpath(path): None}
    seen = set[str]()
    folder, parts = "/", path.split("/")
    while parts:
        part = parts.pop(0)
        if part == os.pardir:
            folder = os.path.dirname(folder)
        elif part not in ("", os.curdir):
            entry = os.path.join(folder, part)
            try:
                target = os.readlink(entry)
            except OSError:  # it is not a link
                folder = entry
                continue
            if entry in seen:  # the links are a circle
                break
            seen.add(entry)
            names[os.path.join(entry, *parts)] = None
            folder = "/" if os.path.isabs(target) else folder
            parts = [*target.split("/"), *parts]
    return {**names, os.path.realpath(path): None}


def _is_unreported(project: str, observation: Observation, changes: Changes) -> bool:
    """Whether git never reports changes of a file of the project, for example because it ignores the file."""
    kind, name = observation.dependency.kind, observation.dependency.name
    if kind != "file" or observation.state in (ABSENT, DIRECTORY) or os.path.isabs(name):
        return False
    path = os.path.realpath(os.path.join(project, name))
    return os.path.exists(path) and not changes.reports(path)
