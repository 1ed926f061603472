"""Find the package that a command names, by its directory or by its model."""

from __future__ import annotations

import stat
from collections.abc import Collection
from pathlib import Path

from trtbuild.core.model.spec import Model
from trtbuild.core.values.nearest import suggestion
from trtbuild.driver.outputs.packages import INDEX
from trtbuild.driver.outputs.triton.served import PACKAGE_FOLDER
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.errors import UsageError
from trtbuild.runtime.packages.package import missing_package_error


def directory_of(project: Path, name: str) -> Path | None:
    """Return the package directory `name`; None if there is no package and `name` can be the name of a model.

    A `name` with a ``/`` or with a dot at its start is a path. Raises UsageError if there is no package at the path, or if
    the path cannot be read. The manifest is not read.
    """
    path = project / name
    if _has_index(path):
        return path
    if "/" in name or name.startswith("."):
        error = missing_package_error(path)
        raise UsageError(error.text, hint=error.hint)
    return None


def package_of(request: Request, name: str) -> Path:
    """Return the directory of a package. `name` is this directory or a model. Raises UsageError if there is no package."""
    project = Path(request.project)
    path = directory_of(project, name)
    if path is not None:
        return path
    models = Workspace(request).models
    refuse_unknown_name(name, models)
    return _package_at(project, models[name])


def refuse_unknown_name(name: str, models: Collection[str]) -> None:
    """Raise UsageError if `name` is not a model of the project. The caller knows that it is not a package directory."""
    if name not in models:
        raise UsageError(
            f"{name!r} is neither a package directory nor a model", hint=suggestion(name, models, "models")
        )


def packages_of(request: Request) -> dict[str, Path | UsageError]:
    """Return model → the directory of its package, or the error about it. The order is that of the manifests."""
    directories: dict[str, Path | UsageError] = {}
    for name, model in Workspace(request).models.items():
        try:
            directories[name] = _package_at(Path(request.project), model)
        except UsageError as error:
            directories[name] = error
    return directories


def _package_at(project: Path, model: Model) -> Path:
    path = project / _output_path(model)
    if not _has_index(path):
        raise UsageError(f"there is no package at {path}", hint=f"trtbuild build {model.name}")
    return path


def _has_index(path: Path) -> bool:
    """Return whether `path` is a directory with a package index. Raises UsageError if it cannot be read."""
    try:
        return stat.S_ISREG((path / INDEX).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:  # `Path.is_file` raises some of these errors and hides others
        raise UsageError(f"the package at {path} cannot be read: {error.strerror or error}") from error


def _output_path(model: Model) -> str:
    """Return where a build writes the model's package, relative to the project. Raises UsageError."""
    outputs = dict(model.outputs)
    if "package" in outputs:
        return outputs["package"]
    if "triton" in outputs:  # the Triton repository contains a package if trtbuild's runtime serves the model
        return f"{outputs['triton']}/{model.name}/{PACKAGE_FOLDER}"
    raise UsageError(
        f"model {model.name!r} has no package among its outputs",
        file=model.origin.file,
        line=model.origin.line,
        hint=f"add `package: dist/{model.name}` to its outputs",
    )
