"""Which package a command means: a directory, or a model of the project by its name."""

from __future__ import annotations

from pathlib import Path

from trtbuild.core.model.spec import Model
from trtbuild.core.values.nearest import suggestion
from trtbuild.driver.outputs.packages import INDEX
from trtbuild.driver.outputs.triton.served import PACKAGE
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.errors import UsageError
from trtbuild.runtime.packages.package import missing


def directory_of(project: Path, said: str) -> Path | None:
    """The package's directory that `said` names; None where it may be a model's name, which has no ``/`` and begins with no
    dot. Raises UsageError of a path where no package lies: that needs no manifest."""
    path = project / said
    if (path / INDEX).is_file():
        return path
    if "/" in said or said.startswith("."):
        fault = missing(path)
        raise UsageError(fault.text, hint=fault.hint)
    return None


def package_of(request: Request, said: str) -> Path:
    """The directory of the package that `said` names. Raises UsageError where there is none."""
    project = Path(request.project)
    path = directory_of(project, said)
    if path is not None:
        return path
    models = Workspace(request).models
    if said not in models:
        raise UsageError(
            f"{said!r} is neither a package directory nor a model", hint=suggestion(said, models, "models")
        )
    path = project / _written(models[said])
    if not (path / INDEX).is_file():
        raise UsageError(f"there is no package at {path}", hint=f"trtbuild build {said}")
    return path


def _written(model: Model) -> str:
    """Where a build writes the model's package, relative to the project."""
    outputs = dict(model.outputs)
    if "package" in outputs:
        return outputs["package"]
    if "triton" in outputs:  # where trtbuild's runtime serves the model
        return f"{outputs['triton']}/{model.name}/{PACKAGE}"
    raise UsageError(
        f"model {model.name!r} has no package among its outputs",
        file=model.origin.file,
        line=model.origin.line,
        hint=f"add `package: dist/{model.name}` to its outputs",
    )
