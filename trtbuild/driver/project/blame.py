"""Where a failed step is mended: the line of the manifest, for errors that know no better place.

A stage knows the user's program and not the manifest; the driver knows what each step was asked to do, and where that is
written. Errors of the store and of this machine are mended elsewhere, and get no place.
"""

from __future__ import annotations

from trtbuild.core.model.spec import Model, Origin, Target
from trtbuild.core.planning.graph import Step
from trtbuild.errors import ConversionRefused, SourceError, ToolchainError, TrtbuildError

#: `SourceError.code` → the field of the manifest that it is about.
_FIELDS = {
    "granularity": "partition.granularity",
    "torch-executed-ops": "partition.torch_executed_ops",
    "weights-file": "weights",
}


def place_in_manifest(error: TrtbuildError, model: Model, step: Step) -> None:
    """Give `error`, which a step of `model` met, the place in the manifest that it is about; one that it has stays."""
    if error.file is not None or not isinstance(error, SourceError | ConversionRefused | ToolchainError):
        return
    if isinstance(error, SourceError) and error.code in _FIELDS:
        origin = _origin(model, _FIELDS[error.code])
    elif isinstance(error, ConversionRefused) and step.stage == "partition":
        origin = _origin(model, "partition.require_full_compilation")
    elif step.target is not None:
        origin = _origin(model, f"targets.{step.target}")
    else:
        origin = _origin(model, "source.python", "source")
    error.file, error.line = origin.file, origin.line


def place_of_target(error: TrtbuildError, model: Model, target: Target) -> None:
    """Give `error`, which is about a target, the place where that is declared."""
    origin = _origin(model, f"targets.{target.name}")
    error.file, error.line = origin.file, origin.line


def _origin(model: Model, *paths: str) -> Origin:
    return next((model.places[path] for path in paths if path in model.places), model.origin)
