"""Warn about quantizers that stay in PyTorch.

Such a model is right, but it does not become what a quantized model is made for: a small or fast engine. The partition
documents have the reasons (`trtbuild.core.partition.partitions`), and ``trtbuild inspect`` shows them.
"""

from __future__ import annotations

from collections.abc import Iterable

from trtbuild.core.partition.partitions import Partitions
from trtbuild.core.planning.graph import ModelPlan

#: How the names of quantizers begin.
_QUANTIZERS = ("quantized_decomposed.", "trtbuild.", "aten.fake_quantize")
#: The reason of an operator that stays in PyTorch because the manifest says so.
_CHOSEN = "in torch_executed_ops"
#: The beginning of a reason that follows from another reason: the pieces between other operators are too small.
_CONSEQUENCE = "in a piece smaller than"


def left_quantizers(plans: Iterable[ModelPlan]) -> list[str]:
    """A warning for each model with quantizers that stay in PyTorch, with the first reason."""
    warnings = []
    for plan in plans:
        partitions = plan.contents.partitions_by_target if plan.contents is not None else {}
        reasons = [
            reason for target_partitions in partitions.values() for reason in _reasons(target_partitions.partitions)
        ]
        if reasons:
            name, text = plan.model.name, min(reasons, key=lambda reason: reason.startswith(_CONSEQUENCE))
            text = text.splitlines()[0].rstrip(".")
            warnings.append(f"{name}: quantizers stay in PyTorch: {text}; trtbuild inspect {name} shows where")
    return warnings


def _reasons(partitions: Partitions) -> list[str]:
    return [
        reason
        for partition in partitions.partitions
        for operator, reason in sorted(partition.reasons.items())
        if operator.startswith(_QUANTIZERS) and reason != _CHOSEN
    ]
