"""The files outside the project that a watched build depends on, and the paths that a build writes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from trtbuild import null_build
from trtbuild.driver.project import wiring
from trtbuild.driver.project.folders import STATE_FOLDER
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.errors import TrtbuildError


@dataclass(frozen=True)
class Dependencies:
    """The files that a watched build reads outside the project, and the paths that it writes.

    `outside` maps the absolute path of each file to its identity, or to None if the file does not exist. A path in the
    project is among them if it leads out of the project through a link.
    """

    outside: dict[str, list[int] | None]
    written: tuple[str, ...]


def dependencies(request: Request) -> Dependencies:
    """Return the dependencies of the models of a request.

    If the models cannot be planned, `outside` has only the manifests and the files that they name. If the manifests are
    not valid, `outside` is empty.
    """
    project = request.project.resolve()  # the notifier reports paths without links
    written = [project / STATE_FOLDER, wiring.store_root(project)]
    names: list[str] = []
    try:
        workspace = Workspace(request)
        names += workspace.manifests
        for model in workspace.models.values():
            written += [project / path for _, path in model.outputs]
            library = model.plugins.library if model.plugins is not None else None
            names += [name for name in (model.weights, model.source.file, library) if name is not None]
        for plan in workspace.plans().values():
            names += [
                seen.dependency.name
                for seen in plan.observations
                if seen.dependency.kind in ("file", "link", "listing")
            ]
    except TrtbuildError:
        pass  # the build reports it
    paths = [os.path.normpath(project / name) for name in names]
    outside = {path: identity(path) for path in paths if _is_outside(path, project)}
    return Dependencies(outside, tuple(map(str, dict.fromkeys(written))))


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
