"""Who takes a unit: Torch, or TensorRT (and then in which region). Labels are what `core.partitioning.cut` keeps apart.

Rules
1. Torch takes what the user says (`torch_executed_ops`), what the ONNX exporter cannot translate, what the toolchain's
   parser refused, and what has sizes that only running tells.
2. With `granularity` by module path, each matched module instance is a region of its own; the rest is one more label.
3. The reason is kept where the decision is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from trtbuild.core.expressions import depends_on_data
from trtbuild.core.spec import PartitionSettings
from trtbuild.stages.partition.units import Unit, tensors_in
from trtbuild.stages.program.symbols import Symbols
from trtbuild.stages.program.text import target_name

TORCH = "torch"


@dataclass(frozen=True)
class Label:
    """`region` is `TORCH`, a matched module path, or the empty string for the rest; `reason` is why Torch has it."""

    region: str
    reason: str = ""


def module_path(unit: Unit) -> str:
    """The path of the module that called the operator; the empty string for the root."""
    stack = unit.call.meta.get("nn_module_stack") or {}
    path: str = list(stack.values())[-1][0] if stack else ""
    return path


def region_of(path: str, patterns: Sequence[str]) -> str:
    """The instance of the first pattern that matches the path or one of its parents, or the empty string.

    ``encoder.layers.*`` matches ``encoder.layers.3.attention`` in ``encoder.layers.3``.
    """
    parts = path.split(".") if path else []
    for pattern in patterns:
        wanted = pattern.split(".")
        if len(parts) >= len(wanted) and all(map(fnmatchcase, parts, wanted)):
            return ".".join(parts[: len(wanted)])
    return ""


def is_listed(name: str, operators: Sequence[str]) -> bool:
    """Whether ``aten.cumsum.default`` is meant by one of ``aten.cumsum.default``, ``aten.cumsum``."""
    return any(name == listed or name.rpartition(".")[0] == listed for listed in operators)


def label_units(
    units: Sequence[Unit],
    settings: PartitionSettings,
    untranslatable: Mapping[int, str],
    refused: Mapping[int, str],
    symbols: Symbols,
) -> list[Label]:
    """One label per unit. `untranslatable` and `refused` map call indexes to reasons."""
    patterns = settings.granularity if settings.by_module else ()
    labels = []
    for unit in units:
        name = target_name(unit.call.target)
        if is_listed(name, settings.torch_executed_ops):
            labels.append(Label(TORCH, "in torch_executed_ops"))
        elif unit.index in untranslatable:
            labels.append(Label(TORCH, untranslatable[unit.index]))
        elif unit.index in refused:
            labels.append(Label(TORCH, refused[unit.index]))
        elif _has_data_dependent_sizes(unit, symbols):
            labels.append(Label(TORCH, "has a size that depends on data"))
        else:
            labels.append(Label(region_of(module_path(unit), patterns)))
    return labels


def _has_data_dependent_sizes(unit: Unit, symbols: Symbols) -> bool:
    values = [node.meta.get("val") for node in (*unit.call.all_input_nodes, *unit.nodes)]
    return any(
        depends_on_data(symbols.expression(size))
        for value in values
        for tensor in tensors_in(value)
        for size in tensor.shape
        if not isinstance(size, int)
    )
