"""The result of ``inspect --precision`` as text: the types of a model's modules, and the operators with another type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import align_rows, count
from trtbuild.core.model.precisions import ComputedOperator
from trtbuild.core.values.module_paths import without_numbers
from trtbuild.driver.inspection.precision import InspectedPrecision


def precision_lines(document: InspectedPrecision) -> list[str]:
    others = [f"{precision} for {pattern}" for pattern, precision in document.modules.items()]
    lines = [f"{terminal.bold(document.model)}: {', '.join([document.default, *others])}"]
    lines += align_rows([("module", "computes in", "operators"), *_module_rows(document.operators)])
    ruled = [*_ruled_rows(document.operators)]
    return [*lines, "not in the type of the module", *align_rows(ruled)] if ruled else lines


def _module_rows(operators: Sequence[ComputedOperator]) -> Iterator[tuple[str, ...]]:
    """A row for each module: its type with the pattern that sets the type, and its operators.

    Equal modules whose paths differ only in numbers share a row."""
    operators_of_module: dict[tuple[str, str, str], list[str]] = {}
    for entry in operators:
        if entry.rule is None:
            pattern = f" ({entry.pattern})" if entry.pattern is not None else ""
            operators_of_module.setdefault((entry.module, entry.type, pattern), []).append(_name(entry))
    module_counts: dict[tuple[str, str, str], int] = {}
    for (module, type_, pattern), names in operators_of_module.items():
        row = (_with_wildcards(module), f"{type_}{pattern}", ", ".join(dict.fromkeys(names)))
        module_counts[row] = module_counts.get(row, 0) + 1
    for (module, type_, operators_text), number in module_counts.items():
        yield (f"  {module}{f' ({number})' if number > 1 else ''}", type_, operators_text)


def _ruled_rows(operators: Sequence[ComputedOperator]) -> Iterator[tuple[str, ...]]:
    """A row for each operator that is not computed in the type of its module, with the rule that is the reason."""
    calls: dict[tuple[str, str, str, str], int] = {}
    for entry in operators:
        if entry.rule is not None:
            row = (_with_wildcards(entry.module), _name(entry), entry.type, f"{entry.rule}: {entry.reason}")
            calls[row] = calls.get(row, 0) + entry.calls
    for (module, name, type_, reason), number in calls.items():
        yield (f"  {module}", name, count(number, "call"), type_, reason)


def _with_wildcards(module: str) -> str:
    """``layers.3.mlp`` → ``layers.*.mlp``; the model itself is ``(the model)``."""
    return without_numbers(module) or "(the model)"


def _name(entry: ComputedOperator) -> str:
    """``aten.linear.default`` → ``linear``."""
    parts = entry.operator.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "aten" else entry.operator
