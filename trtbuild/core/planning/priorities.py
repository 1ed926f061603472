"""Which of the steps that could start should: those that lead to the longest remaining work.

Rules
1. A step's rank is the seconds that it will take and what has to come after it. Trace, lower and partition are a gate:
   nothing of their model can start before they are done, so all the work behind them counts. A conversion leads to its
   engines, and an engine to the package.
2. How long a step took last time is the best guess. Else an engine is judged by its weights, and the rest by its stage.
   Guesses decide an order and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.planning.graph import STAGES, ModelPlan, Stage, Step

#: Seconds that a step takes of which nothing is known: tiny models on one core (`make bench` measures whole builds).
TYPICAL_S: Mapping[Stage, float] = {
    "trace": 4.0,
    "lower": 1.0,
    "partition": 3.0,
    "convert": 2.0,
    "engine": 1.0,
    "package": 0.1,
}
#: Seconds for each byte of an engine's weights: 343 MB of ViT-B compile in about 5 s.
ENGINE_S_PER_BYTE = 1.5e-8

#: Element sizes in bytes of the dtypes that weights have.
_WIDTHS = {"bool": 1, "uint8": 1, "int8": 1, "int16": 2, "float16": 2, "bfloat16": 2, "int64": 8, "float64": 8}

_GATES: tuple[Stage, ...] = ("trace", "lower", "partition")


def weights_bytes(step: Step) -> int:
    """The weights that an engine step's job names, in bytes, each distinct one once; 0 for other steps."""
    if not isinstance(step.job, EngineJob):
        return 0
    weights = step.job.weights
    sizes = {weight.sha256: _WIDTHS.get(weight.dtype, 4) * math.prod(weight.shape) for weight in weights}
    return sum(sizes.values())


def ranks(plan: ModelPlan, last_duration_s: Callable[[str], float | None]) -> dict[str, float]:
    """The rank of each step of a model that is not done, by step id: larger is more urgent."""
    alone: dict[str, float] = {}
    by_stage: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
    for step in plan.steps.values():
        if step.verdict != "hit":
            alone[step.id] = _seconds(step, last_duration_s)
            by_stage[step.stage] += alone[step.id]
    behind: dict[str, float] = {}
    for step in plan.steps.values():
        if step.stage == "engine" and step.id in alone:
            for before in step.after:
                behind[before] = behind.get(before, 0.0) + alone[step.id]
    found = {}
    for identifier, seconds in alone.items():
        step = plan.steps[identifier]
        if step.stage in _GATES:
            rest = sum(by_stage[stage] for stage in STAGES[STAGES.index(step.stage) + 1 :])
        elif step.stage == "package":
            rest = 0.0
        else:
            rest = by_stage["package"] + (behind.get(identifier, 0.0) if step.stage == "convert" else 0.0)
        found[identifier] = seconds + rest
    return found


def _seconds(step: Step, last_duration_s: Callable[[str], float | None]) -> float:
    last = last_duration_s(step.id)
    return TYPICAL_S[step.stage] + ENGINE_S_PER_BYTE * weights_bytes(step) if last is None else last
