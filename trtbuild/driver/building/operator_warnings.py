"""Warnings about operators from outside PyTorch whose results cannot be compared on the CPU."""

from __future__ import annotations

from collections.abc import Iterable

from trtbuild.core.planning.graph import ModelPlan


def operator_warnings(plans: Iterable[ModelPlan]) -> list[str]:
    """One warning for each model that calls such operators."""
    warnings = []
    for plan in plans:
        operators = plan.contents.interface.operators if plan.contents is not None else ()
        names = list(dict.fromkeys(entry.qualified_name for entry in operators if not entry.has_cpu_kernel))
        if names:
            verb, possessive = ("has", "its") if len(names) == 1 else ("have", "their")
            warnings.append(
                f"{plan.model.name}: {', '.join(names)} {verb} no kernel for the CPU: the build and `trtbuild verify` "
                f"compare {possessive} calls, not {possessive} results"
            )
    return warnings
