"""Label each unit: it stays in PyTorch, or it belongs to a TensorRT region.

A unit is one operator call and the nodes that must stay with it (`units`). Units of different regions are never in the
same partition.

Rules
1. These units stay in PyTorch: operators in `torch_executed_ops`, calls that the ONNX exporter cannot translate or the
   toolchain's parser rejects, calls that compute values from empty tensors, and calls with sizes or arguments that depend
   on data. A call of ``torch.cond`` stays in PyTorch if a branch has an operator of `torch_executed_ops`. Operators from
   outside PyTorch stay in PyTorch, too, except plugins. The calls that check a plugin's results are in the region of the
   plugin; those for other operators stay in PyTorch.
2. If `granularity` has module paths, each call of a matching module is a separate region. All other units are one region.
3. The label of a unit that stays in PyTorch has the reason for it.
4. With ``truncate_double``, the casts between float64 and float32 stay in PyTorch. They do not count as a split of the
   model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from trtbuild import declared_sizes
from trtbuild.core.model.plugins import Plugin
from trtbuild.core.model.spec import PartitionSettings
from trtbuild.core.values.nearest import nearest
from trtbuild.errors import SourceError
from trtbuild.stages.partition.regions import Region, region_of
from trtbuild.stages.partition.units import Unit, is_size, tensors_in
from trtbuild.stages.program.custom_operators import TORCH_NAMESPACES, is_custom
from trtbuild.stages.program.functional import Program, calls_with_nested
from trtbuild.stages.program.plugins import is_plugin, plugin_call_checked_by
from trtbuild.stages.program.text import target_name

#: The reason of a cast between float64 and float32 (rule 4).
BORDER_CAST_REASON = "casts float64 at the border of an engine"
CUSTOM_OPERATOR_REASON = "an operator from outside PyTorch"


@dataclass(frozen=True)
class Label:
    """The label of a unit."""

    region: Region | None  # None: the unit stays in PyTorch
    reason: str = ""  # why the unit stays in PyTorch

    @property
    def splits_model(self) -> bool:
        """Whether the unit stays in PyTorch, and is not a cast of rule 4."""
        return self.region is None and self.reason != BORDER_CAST_REASON


def matches_any(name: str, operators: Sequence[str]) -> bool:
    """Whether `operators` contains the operator `name`, such as ``aten.cumsum.default``. An entry may leave out the
    overload (``aten.cumsum``), and may have Torch-TensorRT's prefix ``torch.ops.``."""
    listed_names = {operator.removeprefix("torch.ops.") for operator in operators}
    return name in listed_names or name.rpartition(".")[0] in listed_names


def check_operators_exist(operators: Sequence[str]) -> None:
    """Raise SourceError (code ``torch-executed-ops``) for an operator that PyTorch does not have.

    Only operators of `TORCH_NAMESPACES` are checked, because the user's operators are not registered in this process.
    """
    if not operators:
        return
    known = {name.replace("::", ".") for name in torch._C._dispatch_get_all_op_names()}
    for schema in torch._C._jit_get_all_schemas():  # includes operators without a kernel
        known.add(f"{schema.name}.{schema.overload_name}".rstrip(".").replace("::", "."))
    known |= {".".join(name.split(".")[:2]) for name in known}  # without the overload
    namespaces = {name.partition(".")[0] for name in known} & TORCH_NAMESPACES
    for operator in operators:
        name = operator.removeprefix("torch.ops.").removesuffix(".default")
        if name not in known and name.partition(".")[0] in namespaces:
            similar = nearest(name, known)
            raise SourceError(
                f"torch_executed_ops names {operator!r}, but PyTorch has no such operator",
                code="torch-executed-ops",
                hint=f"did you mean {similar!r}?" if similar else "such as `aten.cumsum`, or `aten.cumsum.default`",
            )


def find_border_casts(program: Program, units: Sequence[Unit]) -> dict[int, str]:
    """Call number → reason, for casts between float64 and float32. Casts of weights and constants are left out, because
    engines contain the results of these casts."""
    stored_nodes = {*program.weight_nodes, *(node for node in program.placeholders if node.name in program.constants)}
    reasons = {}
    for unit in units:
        if unit.call.target is torch.ops.aten._to_copy.default and unit.call.args[0] not in stored_nodes:
            types = {node.meta["val"].dtype for node in (unit.call, unit.call.all_input_nodes[0])}
            if types == {torch.float32, torch.float64}:
                reasons[unit.call_number] = BORDER_CAST_REASON
    return reasons


def label_units(
    units: Sequence[Unit],
    settings: PartitionSettings,
    refusals: Mapping[int, str],
    plugins: Mapping[str, Plugin] | None = None,
) -> list[Label]:
    """Return one label per unit. `refusals`: number of a call that must stay in PyTorch → the reason. `plugins`: operator →
    plugin."""
    patterns = settings.granularity if settings.divides_by_module else ()
    known_plugins = plugins or {}
    labels = {unit.call: _label(unit, settings, patterns, refusals, known_plugins) for unit in units}
    for unit in units:
        call = plugin_call_checked_by(unit.call, known_plugins) if known_plugins else None
        if call is not None and labels[call].region is not None:
            labels[unit.call] = labels[call]
    return list(labels.values())


def _label(
    unit: Unit,
    settings: PartitionSettings,
    patterns: Sequence[str],
    refusals: Mapping[int, str],
    plugins: Mapping[str, Plugin],
) -> Label:
    if any(matches_any(target_name(call.target), settings.torch_executed_ops) for call in calls_with_nested(unit.call)):
        return Label(None, "in torch_executed_ops")
    if is_custom(unit.call.target) and not is_plugin(unit.call, plugins):
        return Label(None, CUSTOM_OPERATOR_REASON)
    if declared_sizes.is_size_check(unit.call.target):
        return Label(None, "checks the sizes that an operator from outside PyTorch returns")
    if unit.call_number in refusals:
        return Label(None, refusals[unit.call_number])
    if _has_data_dependent_size(unit):
        return Label(None, "has a size that depends on data")
    if _takes_data_dependent_number(unit):
        return Label(None, "takes a number that depends on data")
    return Label(region_of(unit.call, patterns))


def _has_data_dependent_size(unit: Unit) -> bool:
    values = (node.meta.get("val") for node in (*unit.call.all_input_nodes, *unit.nodes))
    return any(free_unbacked_symbols(list(tensor.shape)) for value in values for tensor in tensors_in(value))


def _takes_data_dependent_number(unit: Unit) -> bool:
    return any(free_unbacked_symbols(node.meta["val"]) for node in unit.call.all_input_nodes if is_size(node))
