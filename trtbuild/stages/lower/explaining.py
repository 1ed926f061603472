"""Find the floating type in which each operator of a model computes, for ``inspect --precision``. If an operator does not
compute in the type that its module requests, name the rule that decided this.

Rules
1. The types are those of the lower step: the passes before `apply_precision` run, and then
   `trtbuild.stages.lower.half_precision.dtypes` decides. No cast is inserted, because casts are not operators of the
   model.
2. The result leaves out operators that neither read nor return floating-point or complex values, and operators that read
   only the shape of a value.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from trtbuild.core.model.precisions import ComputedOperator, Precisions
from trtbuild.stages.lower.half_precision.dtypes import Dtypes, Rule, role_of
from trtbuild.stages.lower.half_precision.operators import Role, row_of
from trtbuild.stages.lower.half_precision.precision import apply_precision, decide
from trtbuild.stages.lower.half_precision.ranges import is_float32, tensors
from trtbuild.stages.lower.modules import path_of
from trtbuild.stages.lower.passes import PASSES
from trtbuild.stages.lower.request import Request
from trtbuild.stages.lower.run import check_modules, run_passes
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.text import target_name

#: Why a node is float32, as a text. `type` is the type that the node's module requests.
_REASONS = {
    Rule.RANGE: "a value may not fit {type}, or needs more digits",
    Rule.READERS: "only operators in float32 read the result",
    Rule.MASK: "it reads a value that may be a mask, and {type} cannot hold the lowest number of a mask",
    Rule.MODEL_INPUT: "it normalizes an input of the model, which may not fit {type}",
}


def explain(
    program: Program,
    precisions: Precisions,
    decompositions: Mapping[Any, Callable[..., Any]],
    *,
    truncates_double: bool = False,
) -> list[ComputedOperator]:
    """Return the operators of a traced program with their modules, in the order of the graph. One entry counts the equal
    calls in one module.

    The arguments are those of `trtbuild.stages.lower.run.lower`. Raises the same errors, except InconsistentShapes."""
    check_modules(program, precisions)
    earlier_passes = PASSES[: [step.function for step in PASSES].index(apply_precision)]
    prepared = run_passes(program, Request(precisions, decompositions, truncates_double), earlier_passes)
    calls = Counter(_computed_operators(prepared, precisions, truncates_double=truncates_double))
    return [replace(entry, calls=count) for entry, count in calls.items()]


def _computed_operators(
    program: Program, precisions: Precisions, *, truncates_double: bool
) -> Iterator[ComputedOperator]:
    dtypes = decide(program, precisions)
    for node in program.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem or role_of(node) is Role.SHAPE:
            continue
        computed_type = _type_of(node, dtypes)
        if computed_type is None:
            continue
        entry = precisions.entry_of(path_of(node))
        rule, reason = _rule_of(node, computed_type, dtypes)
        if computed_type is torch.float64 and truncates_double:
            computed_type, rule, reason = torch.float32, "truncate_double", "float64 is computed in float32"
        yield ComputedOperator(
            module=path_of(node),
            operator=target_name(node.target),
            calls=1,
            type=_name(computed_type),
            pattern=None if entry is None else entry.pattern,
            rule=rule,
            reason=reason,
        )


def _type_of(node: torch.fx.Node, dtypes: Dtypes) -> torch.dtype | None:
    """The floating-point or complex type in which `node` computes, or None."""
    if node in dtypes.half:
        return dtypes.half[node]
    for value in (node, *node.all_input_nodes):
        for tensor in tensors(value):
            if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
                return tensor.dtype
    return None


def _rule_of(node: torch.fx.Node, computed_type: torch.dtype, dtypes: Dtypes) -> tuple[str | None, str | None]:
    """Return (rule, reason) if `node` does not compute in the type that its module requests, otherwise (None, None)."""
    requested_type = dtypes.requested[node]
    if computed_type is requested_type:
        return None, None
    if computed_type is not torch.float32:
        return "type", f"the model itself computes this value in {_name(computed_type)}"
    used_types = [tensor.dtype for value in (node, *node.all_input_nodes) for tensor in tensors(value)]
    other_type = next((dtype for dtype in used_types if dtype.is_floating_point and dtype is not torch.float32), None)
    if other_type is not None:
        return "type", f"the model itself converts between float32 and {_name(other_type)} here"
    rule = dtypes.rules.get(node)
    if rule in _REASONS:
        return rule.value, _REASONS[rule].format(type=_name(requested_type))
    if role_of(node) is Role.COMPARE:
        return "operands", "it compares values in float32"
    if rule is Rule.OPERATOR:
        row = row_of(node.target)
        if row.role is Role.KEEP:
            return rule.value, row.reason
        return rule.value, f"this form of it is not known to be right in {_name(requested_type)}"
    if any(map(is_float32, node.all_input_nodes)):
        return "operands", "its operand is float32"
    return "operands", "its operands are integers or booleans"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
