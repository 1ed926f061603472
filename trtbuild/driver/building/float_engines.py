"""Warn about quantized models whose engines compute in floats (`trtbuild.core.engines.float_fallbacks`).

The engine step finds the fallbacks, and its record keeps them. So a later build that finds the record warns, too. Records
of older versions have no such field, and plans of TensorRT do not name their types: there is no warning for these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trtbuild.core.engines.float_fallbacks import FALLBACKS, Fallback
from trtbuild.core.planning.graph import ModelPlan, Step
from trtbuild.core.recipes.record import Record

_TEXTS: dict[Fallback, str] = {
    "weights": "has converted all quantized weights to floats, so the engines are as large as those of the float model",
    "products": "multiplies floats, although the model quantizes both factors, so the engines are not faster",
}
_ADVICE: dict[Fallback, str] = {
    "weights": "build for another target or toolchain, or without quantizers",
    "products": "quantize the weights only, which makes engines smaller, or build for another target",
}


def float_engines(plans: Iterable[ModelPlan]) -> list[str]:
    """A warning for each model and fallback that all quantized engines of a target have."""
    return [text for plan in plans for text in _warnings(plan)]


def _warnings(plan: ModelPlan) -> Iterator[str]:
    engines = [step for step in plan.steps.values() if step.stage == "engine" and step.target is not None]
    for fallback in FALLBACKS:
        targets = [
            target.name
            for target in plan.model.targets
            if _all_fall_back([step for step in engines if step.target == target.name], fallback)
        ]
        if targets:
            toolchains = {target.toolchain for target in plan.model.targets if target.name in targets}
            name = plan.model.name
            yield (
                f"{name}@{','.join(targets)}: {' and '.join(sorted(toolchains))} {_TEXTS[fallback]}; {_ADVICE[fallback]} "
                f"(trtbuild inspect {name} --layers shows the types)"
            )


def _all_fall_back(engines: list[Step], fallback: Fallback) -> bool:
    """Whether all engines with quantizers have the fallback. It is false if this is not known of an engine."""
    found = [_fallbacks(step.record) for step in engines]
    return any(found) and all(fallbacks is not None and (not fallbacks or fallback in fallbacks) for fallbacks in found)


def _fallbacks(record: Record | None) -> tuple[str, ...] | None:
    """The fallbacks in a record, after the word "quantized"; empty for an engine without quantizers. None if they are not
    known.

    Provenance may come from anywhere, so any structure is accepted."""
    statistics = record.provenance.get("statistics") if record is not None else None
    if not isinstance(statistics, dict) or "quantized" not in statistics:
        return None
    quantized = statistics["quantized"]
    if quantized is None:
        return ()
    fallbacks = quantized.get("fallbacks") if isinstance(quantized, dict) else None
    return ("quantized", *map(str, fallbacks)) if isinstance(fallbacks, list) else None
