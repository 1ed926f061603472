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

#: The advice if the error against the float model is unknown, for each kind of model.
ADVICE_FOR_PYTORCH = "to know it, return the float model, and let `quantize:` round it"
ADVICE_FOR_ONNX = "an ONNX file does not have the float model, so leave out --max-error"
ADVICE_FOR_PACKAGE = "verify the model in its project, where its float model may be known"


@dataclass(frozen=True)
class Options:
    """The options of a verification: the number of random points per profile, and their seed.

    `tolerance` replaces the tolerances that depend on the precision. `replay` is a file of inputs. With it, the
    inputs of the file are the only point. `max_error` is the largest allowed error against the float model, for
    quantized models. `import_operators` is whether to import the modules of operators that a package calls, and
    `load_plugins` whether to load the library of plugins in a package. `device` is the device that runs engines, in a form
    that `trtbuild.load` accepts. If `device` is None, each target runs on the GPU that fits best.
    """

    points: int = verification.DEFAULT_RANDOM_POINTS
    seed: int = verification.DEFAULT_SEED
    tolerance: float | None = None
    replay: str | None = None
    max_error: float | None = None
    import_operators: bool = False
    load_plugins: bool = False
    device: str | None = None

    def excess(self, cuts: Sequence[CutEntry], advice: str, *, quantized: bool) -> str | None:
        """The reason why ``--max-error`` rejects a model: its error against the float model is larger than
        `max_error`, or is unknown.

        None if there is no `max_error`, if the error is at most `max_error`, or if the model has no quantizers. `cuts` has
        the comparisons, for each way to divide the model into partitions. `advice` says what to do if the error is unknown.
        `quantized`, whether the model may have quantizers, is read only if no cut has a `float_error`."""
        if self.max_error is None:
            return None
        errors = [cut.float_error for cut in cuts if cut.float_error is not None]
        if quantized and not errors:
            errors = [FloatError(outputs=[], unknown="unknown: nothing was compared")]
        return next(filter(None, (error.excess(self.max_error, advice) for error in errors)), None)


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
