"""The options of a verification, and the document of its results."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trtbuild.core.model import verification
from trtbuild.errors import InternalError

Document = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """The options of a verification: the number of random points per profile, and their seed.

    `tolerance` replaces the tolerances by precision. `replay` is a file of inputs that replaces the points.
    """

    points: int = verification.RANDOM_POINTS
    seed: int = verification.SEED
    tolerance: float | None = None
    replay: str | None = None


def document(
    options: Options,
    started: float,
    models: Sequence[Document],
    errors: Sequence[Document],
    warnings: Sequence[str] = (),
) -> Document:
    """Return the document ``trtbuild.verify/1`` about models of a project, or about packages.

    `started` is a time of `time.monotonic`. `errors` are documents (`report.describe`).
    """
    return {
        "schema": "trtbuild.verify/1",
        "ok": all(model["ok"] for model in models) and not errors,
        "duration_s": round(time.monotonic() - started, 3),
        "seed": options.seed,
        "random_points": options.points,
        "models": list(models),
        "errors": list(errors),
        "warnings": list(warnings),
    }


class NotCompared(Exception):
    """Engines could run here, but there is no reference to compare them with. The text is the reason."""


def unexpected(error: Exception) -> InternalError:
    """Return an InternalError with the traceback of an unexpected exception."""
    return InternalError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
