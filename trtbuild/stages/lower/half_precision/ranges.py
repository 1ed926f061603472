"""Find the values of a program that may not fit half precision: forward, from constants and operators.

Rules
1. `HALF`: fits. `UNSEEN`: an unchanged value of an input or weight; it may be a mask, and float32 arithmetic reads it
   without a cast. `WIDE`: may leave half's range, or needs more digits than half has (a sum of squares, a tiny
   epsilon). Arithmetic stays in float32 until an operator whose result fits, or a matrix product, reads it. `BEYOND`:
   holds numbers that half cannot hold (``torch.finfo.min``, integers). Matrix products stay in float32, too.
2. The range of a constant follows from its values. The values of weights and inputs are not known here. Arithmetic
   turns them into an activation, which is `HALF`.
3. Half can hold -inf, inf and NaN.
4. A number made from integers is `BEYOND`, one made from booleans `HALF`: integers are mostly positions and sizes, and
   float16 counts to 2,048 only.
5. The result of data movement and arithmetic has the widest range of its inputs. Other operators have the range in
   their row of `operators`.
"""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Iterator, Mapping

import torch
import torch.utils._pytree as pytree

from trtbuild.stages.lower.half_precision.operators import Result, Role, Row, row

#: Above this, neighbouring float16 numbers are more than 1 apart; bfloat16 gets the same bound.
_COARSE = 2048.0
#: Operators whose scalars are bounds: one beyond half's range has no effect, and does not make values large.
_BOUNDED_BY = frozenset({"clamp", "clamp_min", "clamp_max", "clip", "hardtanh"})
#: Operators of data movement and constants with an argument that becomes a value → (its position, its keyword).
_FILLS = {
    "constant_pad_nd": (2, "value"),
    "pad": (3, "value"),
    "scatter": (3, "value"),
    "full": (1, "fill_value"),
    "full_like": (1, "fill_value"),
    "new_full": (2, "fill_value"),
    "scalar_tensor": (0, "s"),
    "fill": (1, "value"),
}


class Range(enum.IntEnum):
    """The range of a value, from narrow to wide (rule 1)."""

    HALF = 0
    UNSEEN = 1
    WIDE = 2
    BEYOND = 3


def ranges(
    graph: torch.fx.Graph, constants: Mapping[str, torch.Tensor], half: torch.dtype
) -> dict[torch.fx.Node, Range]:
    """Find the range of each node's value. `constants` are the lifted constants by placeholder name."""
    found: dict[torch.fx.Node, Range] = {}
    for node in graph.nodes:
        if node.op == "placeholder" and node.name in constants:
            found[node] = _of_tensor(constants[node.name], half)
        elif node.op == "call_function":
            found[node] = _of_call(node, found, half)
        else:
            found[node] = Range.UNSEEN if is_float32(node) else Range.HALF
    return found


def widest_input(node: torch.fx.Node, found: Mapping[torch.fx.Node, Range]) -> Range:
    """The widest range among the float32 values that `node` reads."""
    return max((found[source] for source in node.all_input_nodes if is_float32(source)), default=Range.HALF)


def is_float32(node: torch.fx.Node) -> bool:
    """Whether the value of `node`, or a part of it, is a float32 tensor."""
    return any(tensor.dtype is torch.float32 for tensor in tensors(node))


def tensors(node: torch.fx.Node) -> Iterator[torch.Tensor]:
    """The tensors that the value of `node` consists of."""
    return (leaf for leaf in pytree.tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor))


def _of_call(node: torch.fx.Node, found: Mapping[torch.fx.Node, Range], half: torch.dtype) -> Range:
    if node.target is operator.getitem:
        return found[node.all_input_nodes[0]]
    line = row(node.target)
    name = getattr(node.target, "_opname", "")
    own = max(_of_conversion(node, line), _of_fill(node, name, half))
    taken = widest_input(node, found)
    if line.role is Role.CONTRACTION:
        return Range.WIDE if taken is Range.BEYOND else Range.HALF
    if line.role is Role.ELEMENTWISE:
        own = max(own, _of_scalars(node, name, half))
        if line.result is Result.FITS or _is_clamped(node, name, half):
            return Range.HALF
        if taken is Range.UNSEEN:
            taken = min(found[source] for source in node.all_input_nodes if is_float32(source))
    if line.result is Result.FITS:
        return own
    return max(own, taken, Range.WIDE if line.result is Result.WIDE else Range.HALF)


def _of_conversion(node: torch.fx.Node, line: Row) -> Range:
    """The range of a value that was converted from another dtype than float32 (rule 4)."""
    name = getattr(node.target, "_opname", "")
    if name in ("_to_copy", "to", "type_as"):
        sources = node.all_input_nodes[:1]
    elif line.role is Role.ELEMENTWISE:
        sources = node.all_input_nodes
    else:
        return Range.HALF
    dtypes = {tensor.dtype for source in sources for tensor in tensors(source)} - {torch.float32, torch.bool}
    if not dtypes:
        return Range.HALF
    return Range.WIDE if all(dtype.is_floating_point for dtype in dtypes) else Range.BEYOND


def _of_fill(node: torch.fx.Node, name: str, half: torch.dtype) -> Range:
    if name in ("arange", "linspace", "logspace"):
        return Range.BEYOND
    if name not in _FILLS:
        return Range.HALF
    position, keyword = _FILLS[name]
    value = node.kwargs.get(keyword, node.args[position] if len(node.args) > position else None)
    if isinstance(value, torch.fx.Node):
        return Range.HALF if is_float32(value) else Range.BEYOND
    return _of_number(float(value), half) if isinstance(value, int | float) else Range.HALF


def _of_scalars(node: torch.fx.Node, name: str, half: torch.dtype) -> Range:
    widest = Range.HALF
    for value in (*node.args, *node.kwargs.values()):  # lists hold sizes
        if isinstance(value, torch.fx.Node):
            # a size that is used as a number: lengths and counts
            scalar = isinstance(value.meta.get("val"), torch.SymInt | torch.SymFloat | int | float)
            widest = max(widest, Range.WIDE if scalar else Range.HALF)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            is_bound = name in _BOUNDED_BY and abs(value) >= 1.0
            widest = max(widest, Range.HALF if is_bound else _of_number(float(value), half))
    return widest


def _is_clamped(node: torch.fx.Node, name: str, half: torch.dtype) -> bool:
    if name not in ("clamp", "clip"):
        return False
    bounds = [*node.args[1:], *(node.kwargs.get(key) for key in ("min", "max") if key in node.kwargs)]
    return len(bounds) == 2 and all(
        isinstance(bound, int | float) and _of_number(float(bound), half) is Range.HALF for bound in bounds
    )


def _of_number(value: float, half: torch.dtype) -> Range:
    size = abs(value)
    limits = torch.finfo(half)
    if not math.isfinite(value) or size == 0.0:
        return Range.HALF
    if size > limits.max:
        return Range.BEYOND
    return Range.WIDE if size > _COARSE or size < limits.tiny else Range.HALF


def _of_tensor(tensor: torch.Tensor, half: torch.dtype) -> Range:
    if tensor.dtype is not torch.float32:
        return Range.HALF
    sizes = tensor.detach().abs().reshape(-1)
    sizes = sizes[torch.isfinite(sizes) & (sizes > 0)]
    if not sizes.numel():
        return Range.HALF
    return max(_of_number(float(sizes.max()), half), _of_number(float(sizes.min()), half))
