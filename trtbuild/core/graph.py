"""The build graph: steps, what they are called, and what was decided about each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trtbuild.core.recipe import Change, Recipe
from trtbuild.core.record import Record

Stage = Literal["trace", "lower", "partition", "convert", "engine", "package"]
STAGES: tuple[Stage, ...] = ("trace", "lower", "partition", "convert", "engine", "package")

Verdict = Literal["hit", "run", "failed", "skipped", "unknown"]
ReasonCode = Literal["recorded", "new", "changed", "evicted", "untrusted", "corrupt", "forced", "uncacheable"]


@dataclass(frozen=True)
class Reason:
    """Why a verdict is what it is; made where the verdict is made."""

    code: ReasonCode
    text: str
    changed: tuple[Change, ...] = ()

    def to_json(self) -> dict[str, object]:
        return {"code": self.code, "text": self.text, "changed": [change.to_json() for change in self.changed]}


def step_id(model: str, stage: Stage, part: str = "", target: str = "") -> str:
    """``vit/engine/encoder.layers.3@ada``."""
    return f"{model}/{stage}" + (f"/{part}" if part else "") + (f"@{target}" if target else "")


@dataclass(frozen=True)
class Step:
    """One step of one model, and the verdict on it.

    `recipe` is None as long as an earlier step has to run first (verdict ``unknown``). `job` is what a worker is told
    when the step runs: JSON, with blobs by digest. `after` are the ids of the steps whose outputs it consumes.
    """

    id: str
    model: str
    stage: Stage
    verdict: Verdict
    reason: Reason
    target: str | None = None
    recipe: Recipe | None = None
    record: Record | None = None
    job: Mapping[str, object] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    source: str | None = None

    @property
    def key(self) -> str | None:
        return self.recipe.key if self.recipe else None
