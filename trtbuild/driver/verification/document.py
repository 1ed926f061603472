"""The options of a verification, and the document of its results."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from trtbuild.core.model import verification
from trtbuild.core.model.comparisons import FloatError
from trtbuild.core.model.verified import CutEntry, ModelEntry, PackageEntry
from trtbuild.driver.answers.documents import ErrorEntry, Verification
from trtbuild.errors import InternalError

#: The advice if the error against the float model is unknown: for models from PyTorch, for ONNX models, for packages.
ADVICE_FOR_PYTORCH = "to know it, return the float model, and let `quantize:` round it"
ADVICE_FOR_ONNX = "an ONNX file does not have the float model, so leave out --max-error"
ADVICE_FOR_PACKAGE = "verify the model in its project, where its float model may be known"


@dataclass(frozen=True)
class Options:
    """The options of a verification."""

    #: The number of random points of each profile. A point is one size for each dim, and a seed for the inputs' values.
    points: int = verification.DEFAULT_RANDOM_POINTS
    #: The seeds of all points are derived from this seed.
    seed: int = verification.DEFAULT_SEED
    #: Replaces the tolerances that depend on the precision.
    tolerance: float | None = None
    #: A file of inputs. They are then the only point.
    replay: str | None = None
    #: The largest allowed error of a quantized model against its float model.
    max_error: float | None = None
    #: Whether to import the modules of operators that a package calls.
    import_operators: bool = False
    #: Whether to load the library of plugins in a package.
    load_plugins: bool = False
    #: The device that runs engines, in a form that `trtbuild.load` accepts. None: the GPU that fits each target best.
    device: str | None = None

    def why_rejected(self, cuts: Sequence[CutEntry], advice: str, *, quantized: bool) -> str | None:
        """Return the reason why ``--max-error`` rejects a model; None if it accepts the model, or is not given.

        The flag rejects a quantized model if the error against the float model is larger than `max_error`, or unknown.
        `cuts` are the model's comparisons. `advice` says what to do if the error is unknown. `quantized` is whether the
        model may have quantizers. It matters only if no comparison has a `float_error`.
        """
        if self.max_error is None:
            return None
        errors = [cut.float_error for cut in cuts if cut.float_error is not None]
        if quantized and not errors:
            errors = [FloatError(outputs=[], unknown="unknown: nothing was compared")]
        return next(filter(None, (error.why_rejected(self.max_error, advice) for error in errors)), None)


def verification_document(
    options: Options,
    started: float,
    models: Sequence[ModelEntry | PackageEntry],
    errors: Sequence[ErrorEntry],
    warnings: Sequence[str] = (),
) -> Verification:
    """Return the document about the models of a project, or about packages. `started` is a time of `time.monotonic`."""
    return Verification(
        ok=all(model.ok for model in models) and not errors,
        duration_s=round(time.monotonic() - started, 3),
        seed=options.seed,
        random_points=options.points,
        models=list(models),
        errors=list(errors),
        warnings=list(warnings),
    )


def internal_error(error: Exception) -> InternalError:
    """Return an InternalError with the traceback of an unexpected exception."""
    return InternalError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
