"""Add a line of the manifest to the error of a failed step, if the error has no place yet.

A stage does not read the manifest, so the driver finds the field that has caused the error. `place_in_manifest` gives
no place to errors of the store and of this machine, because no change of the manifest corrects them.
"""

from __future__ import annotations

from trtbuild.core.model.spec import Model, Origin, Target
from trtbuild.core.planning.graph import Step
from trtbuild.errors import ConversionRefused, PluginError, SourceError, ToolchainError, TrtbuildError

#: `SourceError.code` → the field of the manifest that causes the error.
_FIELD_OF_ERROR = {
    "granularity": "partition.granularity",
    "torch-executed-ops": "partition.torch_executed_ops",
    "weights-file": "weights",
}


def place_in_manifest(error: TrtbuildError, model: Model, step: Step) -> None:
    """Set the place of an error of `step` to a line of the manifest, unless the error has a place."""
    if error.file is not None or not isinstance(error, SourceError | ConversionRefused | ToolchainError):
        return
    if isinstance(error, SourceError) and error.field is not None:
        origin = _origin(model, error.field)
    elif isinstance(error, SourceError) and error.code in _FIELD_OF_ERROR:
        origin = _origin(model, _FIELD_OF_ERROR[error.code])
    elif isinstance(error, PluginError):
        origin = _origin(model, "plugins.library", "plugins")
    elif isinstance(error, ConversionRefused) and step.stage == "partition":
        origin = _origin(model, "partition.require_full_compilation")
    elif step.target is not None:
        origin = _origin(model, f"targets.{step.target}")
    else:
        origin = _origin(model, "source.python", "source")
    error.file, error.line = origin.file, origin.line


def place_of_target(error: TrtbuildError, model: Model, target: Target) -> None:
    """Set the place of `error` to the line that declares `target`."""
    origin = _origin(model, f"targets.{target.name}")
    error.file, error.line = origin.file, origin.line


def _origin(model: Model, *paths: str) -> Origin:
    """The line of the first of these fields that the manifest has; otherwise the line of the model."""
    return next((model.places[path] for path in paths if path in model.places), model.origin)
