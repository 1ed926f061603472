"""Warnings about quantized models that compute correctly, but are larger or slower than a quantized model should be.

A quantizer is an operator that rounds numbers to a quantized type. The partition documents
(`trtbuild.core.partition.partitions`) say why quantizers stay in PyTorch. The calibrate step finds layers that no sample
reaches. The engine step finds engines that compute in floats (`trtbuild.core.engines.float_fallbacks`). The records of both
steps have these results in `statistics`, so a later build that finds the records warns, too. A record without these results
causes no warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trtbuild.core.engines.float_fallbacks import FALLBACKS, Fallback
from trtbuild.core.partition.partitions import Partitions
from trtbuild.core.planning.graph import ModelPlan, Step
from trtbuild.core.recipes.record import Record

#: How the names of quantizers begin.
_QUANTIZER_PREFIXES = ("quantized_decomposed.", "trtbuild.", "aten.fake_quantize")
#: The reason for an operator that the manifest keeps in PyTorch.
_CHOSEN_BY_MANIFEST = "in torch_executed_ops"
#: How a secondary reason begins: other operators stay in PyTorch, and the piece between them is too small for an engine.
_SECONDARY_REASON = "in a piece smaller than"
_TEXTS: dict[Fallback, str] = {
    "weights": "has converted all quantized weights to floats, so the engines are as large as those of the float model",
    "products": "multiplies floats, although the model quantizes both factors, so the engines are not faster",
}
_ADVICE: dict[Fallback, str] = {
    "weights": "build for another target or toolchain, or without quantizers",
    "products": "quantize the weights only, which makes engines smaller, or build for another target",
}
#: The largest number of layers that a warning lists.
_MOST_LAYERS = 3


def quantization_warnings(plans: Iterable[ModelPlan]) -> list[str]:
    """All warnings about the quantizers of these models."""
    plans = list(plans)
    return [*uncalibrated_layers(plans), *quantizers_in_pytorch(plans), *float_engines(plans)]


def uncalibrated_layers(plans: Iterable[ModelPlan]) -> list[str]:
    """One warning for each model with layers that stay in float, because no sample of the calibration reaches them."""
    warnings = []
    for plan in plans:
        step = next((step for step in plan.steps.values() if step.stage == "calibrate"), None)
        layers = _statistics(step.record if step is not None else None).get("uncalibrated")
        if isinstance(layers, list) and layers:
            listed = ", ".join(map(str, layers[:_MOST_LAYERS])) + (", …" if len(layers) > _MOST_LAYERS else "")
            warnings.append(
                f"{plan.model.name}: the calibration does not call {listed}: "
                f"{'this layer stays' if len(layers) == 1 else f'these {len(layers)} layers stay'} in float; "
                "add samples that reach them, or name them in `exclude`"
            )
    return warnings


def quantizers_in_pytorch(plans: Iterable[ModelPlan]) -> list[str]:
    """One warning for each model with quantizers that stay in PyTorch, although the manifest does not require it.

    The warning has one reason. A reason that is not secondary is preferred.
    """
    warnings = []
    for plan in plans:
        partitions = plan.contents.partitions_by_target if plan.contents is not None else {}
        reasons = [
            reason for target_partitions in partitions.values() for reason in _reasons(target_partitions.partitions)
        ]
        if reasons:
            name, text = plan.model.name, min(reasons, key=lambda reason: reason.startswith(_SECONDARY_REASON))
            text = text.splitlines()[0].rstrip(".")
            warnings.append(f"{name}: quantizers stay in PyTorch: {text}; trtbuild inspect {name} shows where")
    return warnings


def _reasons(partitions: Partitions) -> list[str]:
    return [
        reason
        for partition in partitions.partitions
        for operator, reason in sorted(partition.reasons.items())
        if operator.startswith(_QUANTIZER_PREFIXES) and reason != _CHOSEN_BY_MANIFEST
    ]


def float_engines(plans: Iterable[ModelPlan]) -> list[str]:
    """One warning for each model and each fallback (use of floats) that all quantized engines of a target have."""
    return [text for plan in plans for text in _fallback_warnings(plan)]


def _fallback_warnings(plan: ModelPlan) -> Iterator[str]:
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
    """Whether all quantized engines have the fallback. False if there are no such engines, or if one is unknown."""
    found = [_fallbacks(step.record) for step in engines]
    return any(found) and all(fallbacks is not None and (not fallbacks or fallback in fallbacks) for fallbacks in found)


def _fallbacks(record: Record | None) -> tuple[str, ...] | None:
    """``("quantized", *fallbacks)`` for a quantized engine, and ``()`` for another engine; None if not known.

    Any machine may have written the provenance, so the function accepts any structure.
    """
    statistics = _statistics(record)
    if "quantized" not in statistics:
        return None
    quantized = statistics["quantized"]
    if quantized is None:
        return ()
    fallbacks = quantized.get("fallbacks") if isinstance(quantized, dict) else None
    return ("quantized", *map(str, fallbacks)) if isinstance(fallbacks, list) else None


def _statistics(record: Record | None) -> Mapping[str, Any]:
    """The statistics of the step that made a record; empty if the record has no statistics."""
    statistics = record.provenance.get("statistics") if record is not None else None
    return statistics if isinstance(statistics, dict) else {}
