"""The ranks of the steps of a plan. If several steps are ready, the step with the highest rank starts first.

Rules
1. A step's rank is the estimated duration, in seconds, of the step and of all steps that wait for it. All later steps of a
   model wait for its calibrate, trace, lower and partition steps. The engines of a conversion wait for its convert step.
   The package step waits for all other steps.
2. The estimate is the duration of the step's last run. If that is unknown, the estimate follows from the stage, and for
   an engine also from the size of its weights. Estimates only change the order of the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from trtbuild.core.engines.engine_job import EngineJob, Weight
from trtbuild.core.planning.graph import STAGES, ModelPlan, Stage, Step
from trtbuild.core.values.element_types import ELEMENT_TYPES

#: Stage → estimated seconds of a step whose last duration is not known. The values were measured with tiny models on one
#: core.
TYPICAL_S: Mapping[Stage, float] = {
    "calibrate": 20.0,
    "trace": 4.0,
    "lower": 1.0,
    "partition": 3.0,
    "convert": 2.0,
    "engine": 1.0,
    "package": 0.1,
}
#: Seconds for each byte of an engine's weights. ViT-B, with 343 MB of weights, compiles in about 5 s.
ENGINE_S_PER_BYTE = 1.5e-8

#: All later steps of a model wait for these stages (rule 1).
_FIRST_STAGES: tuple[Stage, ...] = ("calibrate", "trace", "lower", "partition")


def weights_bytes(step: Step) -> int:
    """The size in bytes of an engine step's weights; 0 for other steps."""
    if not isinstance(step.job, EngineJob):
        return 0
    return total_bytes(step.job.weights)


def total_bytes(weights: Iterable[Weight]) -> int:
    """The size in bytes of `weights`, each distinct weight counted once."""
    return sum({weight.sha256: size_bytes(weight) for weight in weights}.values())


def size_bytes(weight: Weight) -> int:
    """The size of a weight in bytes; 0 if its dtype is not known."""
    known = ELEMENT_TYPES.get(weight.dtype)
    return known.itemsize * math.prod(weight.shape) if known is not None else 0


def ranks(plan: ModelPlan, last_duration_s: Callable[[str], float | None]) -> dict[str, float]:
    """Step id → rank in seconds, for each step that is not a hit (rule 1)."""
    step_s: dict[str, float] = {}
    stage_s: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
    for step in plan.steps.values():
        if step.verdict != "hit":
            step_s[step.id] = estimated_duration_s(step, last_duration_s)
            stage_s[step.stage] += step_s[step.id]
    engines_of_conversion_s: dict[str, float] = {}
    for step in plan.steps.values():
        if step.stage == "engine" and step.id in step_s:
            for producer in step.producers:
                engines_of_conversion_s[producer] = engines_of_conversion_s.get(producer, 0.0) + step_s[step.id]
    result = {}
    for identifier, duration_s in step_s.items():
        step = plan.steps[identifier]
        if step.stage in _FIRST_STAGES:
            later_s = sum(stage_s[stage] for stage in STAGES[STAGES.index(step.stage) + 1 :])
        elif step.stage == "package":
            later_s = 0.0
        else:
            later_s = stage_s["package"] + (
                engines_of_conversion_s.get(identifier, 0.0) if step.stage == "convert" else 0.0
            )
        result[identifier] = duration_s + later_s
    return result


def estimated_duration_s(step: Step, last_duration_s: Callable[[str], float | None]) -> float:
    """The estimated duration of a step in seconds (rule 2)."""
    last = last_duration_s(step.id)
    return TYPICAL_S[step.stage] + ENGINE_S_PER_BYTE * weights_bytes(step) if last is None else last
