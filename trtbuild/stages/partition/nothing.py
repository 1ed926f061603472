"""Numbers that are made of no numbers.

The mean of no elements is NaN in PyTorch, and whatever comes in ONNX, which leaves most reductions of nothing open
(https://onnx.ai/onnx/operators/onnx__ReduceMean.html). Torch takes such operators.
"""

from __future__ import annotations

from collections.abc import Sequence

from trtbuild.stages.partition.units import Unit
from trtbuild.stages.program.sizes import At, Point, Type

#: Operators that are the same everywhere: sums, what takes its elements from another operand, and what reads only a shape.
_DEFINED = frozenset(
    {"sum", "prod", "cat", "concat", "stack", "constant_pad_nd", "pad", "slice_scatter", "select_scatter", "scatter"}
    | {"scatter_add", "index_put", "_unsafe_index_put", "index_add", "new_zeros", "new_ones", "new_full", "new_empty"}
)


def made_of_nothing(units: Sequence[Unit], points: Sequence[Point]) -> dict[int, str]:
    """Call number → reason, of the units that give elements at a point where something that they read has none."""
    at = [At(point) for point in points]
    return {unit.index: "makes numbers of a tensor without elements" for unit in units if _gives(unit, at)}


def _gives(unit: Unit, points: Sequence[At]) -> bool:
    if getattr(unit.call.target, "_opname", "") in _DEFINED:
        return False
    values = [node.meta.get("val") for node in unit.call.all_input_nodes]
    for point in points:
        read = [type_ for value in values for type_ in point.said(value)]
        if any(map(_is_empty, read)):
            given = [type_ for node in unit.nodes for type_ in point.said(node.meta.get("val"))]
            if not all(map(_is_empty, given)):
                return True
    return False


def _is_empty(type_: Type) -> bool:
    return 0 in type_[1]
