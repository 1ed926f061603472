"""Find operators that compute values from empty tensors. They stay in PyTorch.

The mean of no elements is NaN in PyTorch. ONNX does not define most reductions of empty tensors
(https://onnx.ai/onnx/operators/onnx__ReduceMean.html).
"""

from __future__ import annotations

from collections.abc import Sequence

from trtbuild.stages.partition.units import Unit
from trtbuild.stages.program.sizes import Point, PointEvaluator, Type

#: Operators that are defined for empty tensors: sums, operators with elements of another operand, and those that read
#: only a shape.
_DEFINED = frozenset(
    {"sum", "prod", "cat", "concat", "stack", "constant_pad_nd", "pad", "slice_scatter", "select_scatter", "scatter"}
    | {"scatter_add", "index_put", "_unsafe_index_put", "index_add", "new_zeros", "new_ones", "new_full", "new_empty"}
)


def computed_from_empty(units: Sequence[Unit], points: Sequence[Point]) -> dict[int, str]:
    """Return call number → reason, for units with a result that has elements at a point where one of their inputs is
    empty."""
    at = [PointEvaluator(point) for point in points]
    return {unit.index: "makes numbers of a tensor without elements" for unit in units if _has_elements(unit, at)}


def _has_elements(unit: Unit, points: Sequence[PointEvaluator]) -> bool:
    if getattr(unit.call.target, "_opname", "") in _DEFINED:
        return False
    values = [node.meta.get("val") for node in unit.call.all_input_nodes]
    for point in points:
        read = [type_ for value in values for type_ in point.declared(value)]
        if any(map(_is_empty, read)):
            given = [type_ for node in unit.nodes for type_ in point.declared(node.meta.get("val"))]
            if not all(map(_is_empty, given)):
                return True
    return False


def _is_empty(type_: Type) -> bool:
    return 0 in type_[1]
