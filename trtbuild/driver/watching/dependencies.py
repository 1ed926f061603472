"""The files outside the project that a watched build depends on, and the paths that a build writes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtbuild import manifest, null_build
from trtbuild.core.planning.graph import ModelPlan, step_id
from trtbuild.core.recipes.dependency import Observation
from trtbuild.driver.project import wiring
from trtbuild.driver.project.folders import STATE_FOLDER
from trtbuild.driver.project.history import History
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.errors import ManifestErrors, TrtbuildError


@dataclass(frozen=True)
class Dependencies:
    """The files that a watched build reads outside the project, and the paths that it writes.

    `outside` maps the absolute path of each file to its identity, or to None if the file does not exist. A path in the
    project is among them if it leads out of the project through a link. `doubtful` are the paths in `outside` whose files
    may have changed since the last build has read them: those that the manifests name, and those that differ from what the
    last trace of their model has read.
    """

    outside: dict[str, list[int] | None]
    written: tuple[str, ...]
    doubtful: tuple[str, ...] = ()


def dependencies(request: Request) -> Dependencies:
    """Return the dependencies of the models of a request.

    If the models cannot be planned, or the manifests are not valid, `outside` has only the manifests and the files that
    they name.
    """
    project = request.project.resolve()  # the notifier reports paths without links
    written = [project / STATE_FOLDER, wiring.store_root(project)]
    named: list[str] = []
    read: list[Observation] = []
    try:
        workspace = Workspace(request)
        named += workspace.manifests
        for model in workspace.models.values():
            written += [project / path for _, path in model.outputs]
            library = model.plugins.library if model.plugins is not None else None
            named += [name for name in (model.weights, model.source.file, library) if name is not None]
        for plan in workspace.plans().values():
            read += _files_read(plan, workspace.history)
    except TrtbuildError:  # the build reports it
        named += _manifests(request)
    paths = {name: os.path.normpath(project / name) for name in (*named, *(seen.dependency.name for seen in read))}
    outside = {path: identity(path) for path in paths.values() if _is_outside(path, project)}
    read_outside = [seen for seen in read if paths[seen.dependency.name] in outside]
    # looked up after the identities, which show every later change
    changed = workspace.lookups.find_changed_dependencies(read_outside) if read_outside else []
    doubtful = [paths[name] for name in (*named, *(dependency.name for dependency in changed))]
    return Dependencies(
        outside,
        tuple(map(str, dict.fromkeys(written))),
        tuple(path for path in dict.fromkeys(doubtful) if path in outside),
    )


def _manifests(request: Request) -> Sequence[str]:
    """The manifests. If they are not valid, also the other files that they name."""
    try:
        return manifest.load(request.project.absolute(), request.files or None).files
    except ManifestErrors as error:
        return error.files
    except TrtbuildError:
        return ()


def _files_read(plan: ModelPlan, history: History) -> Iterator[Observation]:
    """The files that the user code of a model reads. Each has the state that the last run has recorded, if it is known."""
    for stage, code in plan.user_code.items():
        recipe = history.recipe(step_id(plan.model.name, stage))
        recorded = dict(recipe.parts) if recipe is not None else {}
        for dependency, state in code.observations:
            if dependency.kind in ("file", "link", "listing"):
                yield Observation(dependency, str(recorded.get(dependency.part, state)))


def _is_outside(path: str, project: Path) -> bool:
    """Whether a file, or the file to which a link in the project leads, is outside the project.

    The notifier reports a change of the link, but not of the file behind it."""
    return not all(name.startswith(f"{project}{os.sep}") for name in (path, os.path.realpath(path)))


def identity(path: str) -> list[int] | None:
    """Return the identity of a file (size, times, inode); None if it does not exist."""
    try:
        return null_build.identity(Path(path).stat())
    except OSError:
        return None
