"""What a verification is asked, and the document that it answers with."""

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
    """How to verify: random points per profile, what they follow from, and perhaps a tolerance of the user's own, or a
    file of inputs in place of the points."""

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
    """``trtbuild.verify/1`` of what was found, in models of a project or in packages; `started` is by `time.monotonic`,
    `errors` are described."""
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
    """Engines that could be run, and nothing here computes what is right. The text says why."""


def unexpected(error: Exception) -> InternalError:
    """What keeps one model from being verified, and should not."""
    return InternalError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
