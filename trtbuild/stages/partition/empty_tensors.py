"""Find operators that compute values from empty tensors. They stay in PyTorch, because ONNX does not define the results.

For example, the mean of no elements is NaN in PyTorch, and undefined in ONNX
(https://onnx.ai/onnx/operators/onnx__ReduceMean.html).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trtbuild.stages.partition.units import Unit
from trtbuild.stages.program.functional import calls_with_nested
from trtbuild.stages.program.sizes import Point, PointEvaluator, Type

#: Operators that are defined for empty tensors: sums and products, operators that copy elements of another operand, and
#: operators that read only a shape.
_DEFINED_OPERATORS = frozenset(
    {"sum", "prod", "cat", "concat", "stack", "constant_pad_nd", "pad", "slice_scatter", "select_scatter", "scatter"}
    | {"scatter_add", "index_put", "_unsafe_index_put", "index_add", "new_zeros", "new_ones", "new_full", "new_empty"}
)


def find_calls_on_empty_tensors(units: Sequence[Unit], points: Sequence[Point]) -> dict[int, str]:
    """Call number → reason, for each unit that computes a non-empty result from an empty input at one of `points`
    (symbol → number). A call in a nested graph counts, too. `_DEFINED_OPERATORS` are excepted."""
    evaluators = [PointEvaluator(point) for point in points]
    return {
        unit.call_number: "computes values from a tensor without elements"
        for unit in units
        if any(_computes_from_empty_input(call, evaluators) for call in calls_with_nested(unit.call))
    }


def _computes_from_empty_input(call: torch.fx.Node, evaluators: Sequence[PointEvaluator]) -> bool:
    if getattr(call.target, "_opname", "") in _DEFINED_OPERATORS:
        return False
    values = [node.meta.get("val") for node in call.all_input_nodes]
    for evaluator in evaluators:
        input_types = [type_ for value in values for type_ in evaluator.declared(value)]
        if any(map(_is_empty, input_types)) and not all(map(_is_empty, evaluator.declared(call.meta.get("val")))):
            return True
    return False


def _is_empty(type_: Type) -> bool:
    _, sizes = type_
    return 0 in sizes
