"""Estimate which values of a program fit half precision (float16 or bfloat16), from the inputs to the outputs.

Rules
1. There are five ranges, from narrow to wide:
   * `HALF`: the value fits.
   * `MIXED`: the result of arithmetic on an `UNSEEN` value and an activation (a residual sum, or scores plus a mask).
   * `UNSEEN`: the value is an input or a weight, or computed from these alone by operators that keep the range. It may be a
     mask (`dtypes.py`, rule 4).
   * `WIDE`: the value may leave half's range, or needs more digits than half has (a sum of squares, a tiny epsilon).
     Arithmetic that reads it stays in float32.
   * `BEYOND`: the value may contain numbers that half cannot represent (``torch.finfo.min``, large integers), or consist
     of them. Arithmetic and matrix products that read it stay in float32.
2. The range of a constant follows from its numbers. The numbers of weights and inputs are not known here. The result of
   arithmetic on an `UNSEEN` and a `HALF` value is `MIXED`. But if the `HALF` value depends on no input of the model, the
   result is `UNSEEN`: a mask plus a causal mask, or plus a bias that a layer computes from a table, is a mask, too. The
   result of a matrix product is `HALF`, or `WIDE` if an input is `BEYOND` (and in rule 6).
3. Half can represent -inf, inf and NaN.
4. A float that is converted from integers is `BEYOND`, and so are the results of arange, linspace and logspace. They are
   mostly positions and sizes, and float16 counts only to 2,048. A float that is converted from booleans is `HALF`. A
   float that is converted from another floating type is `WIDE`.
5. The result of data movement and arithmetic has the widest range of its inputs and scalars, except in rule 2. It is
   `HALF` if the operator is bounded (sigmoid), or clamps between two numbers that fit. For other operators, the row of
   `operators` decides. If the row has `WIDE`, and an input is `BEYOND`, the result is `BEYOND`.
6. A product with a number outside half's normal range, or a quotient, is `BEYOND`: all elements of ``x * 1e-8`` become 0 in
   float16. The factors `alpha` and `beta` of a matrix product, such as ``baddbmm``, are such numbers, too. The result of
   the matrix product is `WIDE` then. A term, such as an epsilon, is not: it is added to values that fit.
"""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Iterator, Mapping, Set

import torch
import torch.utils._pytree as pytree

from trtbuild.stages.lower.half_precision.operators import Result, Role, Row, row_of

#: Above this number, adjacent float16 numbers are more than 1 apart. The same bound is used for bfloat16.
_LARGEST_FINE_NUMBER = 2048.0
#: Operators whose scalars are bounds. A bound that fits half does not make values large.
_CLAMPING_OPERATORS = frozenset({"clamp", "clamp_min", "clamp_max", "clip", "hardtanh"})
#: Operator → (position, keyword) of the argument that becomes an element of the result.
_FILL_ARGUMENTS = {
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
    """The range of a value (rule 1). A wider range is larger."""

    HALF = 0
    MIXED = 1
    UNSEEN = 2
    WIDE = 3
    BEYOND = 4


def find_ranges(
    graph: torch.fx.Graph, weights: Set[torch.fx.Node], constants: Mapping[str, torch.Tensor], half: torch.dtype
) -> dict[torch.fx.Node, Range]:
    """Return the range of each node's value. `constants` maps the names of placeholders to constants."""
    results: dict[torch.fx.Node, Range] = {}
    fixed = set(weights)  # and the nodes that are computed from weights, constants and sizes alone
    for node in graph.nodes:
        is_size = node.op == "call_function" and next(tensors(node), None) is None
        if node.name in constants or is_size or (node.op == "call_function" and fixed.issuperset(node.all_input_nodes)):
            fixed.add(node)
        if node.op == "placeholder" and node.name in constants:
            results[node] = _range_of_tensor(constants[node.name], half)
        elif node.op == "call_function":
            results[node] = _range_of_call(node, results, fixed, half)
        else:
            results[node] = Range.UNSEEN if is_float32(node) else Range.HALF
    return results


def widest_input(node: torch.fx.Node, ranges_by_node: Mapping[torch.fx.Node, Range]) -> Range:
    """The widest range among the float32 values that `node` reads."""
    return max((ranges_by_node[source] for source in node.all_input_nodes if is_float32(source)), default=Range.HALF)


def is_float32(node: torch.fx.Node) -> bool:
    """Whether the value of `node`, or a part of it, is a float32 tensor."""
    return any(tensor.dtype is torch.float32 for tensor in tensors(node))


def tensors(node: torch.fx.Node) -> Iterator[torch.Tensor]:
    """The fake tensors in the value of `node`."""
    return (leaf for leaf in pytree.tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor))


def _range_of_call(
    node: torch.fx.Node, ranges_by_node: Mapping[torch.fx.Node, Range], fixed: Set[torch.fx.Node], half: torch.dtype
) -> Range:
    if node.target is operator.getitem:
        return ranges_by_node[node.all_input_nodes[0]]
    table_row = row_of(node.target)
    name = getattr(node.target, "_opname", "")
    result = max(_range_of_conversion(node, table_row), _range_of_fill(node, name, half))
    input_range = widest_input(node, ranges_by_node)
    if table_row.role is Role.CONTRACTION:
        return Range.WIDE if max(input_range, _range_of_factors(node, name, half)) is Range.BEYOND else Range.HALF
    if table_row.role is Role.ELEMENTWISE:
        result = max(result, _range_of_scalars(node, name, half), _range_of_factors(node, name, half))
        if table_row.result is Result.FITS or _is_clamped(node, name, half):
            return Range.HALF
        if input_range is Range.UNSEEN:
            sources = [source for source in node.all_input_nodes if is_float32(source) and source not in fixed]
            if any(ranges_by_node[source] < Range.UNSEEN for source in sources):
                input_range = Range.MIXED
    if table_row.result is Result.FITS:
        return result
    return max(result, input_range, Range.WIDE if table_row.result is Result.WIDE else Range.HALF)


def _range_of_conversion(node: torch.fx.Node, table_row: Row) -> Range:
    """The range of a value that is converted from another dtype than float32 (rule 4), or `HALF`."""
    name = getattr(node.target, "_opname", "")
    if name in ("_to_copy", "to", "type_as"):
        sources = node.all_input_nodes[:1]
    elif table_row.role is Role.ELEMENTWISE:
        sources = node.all_input_nodes
    else:
        return Range.HALF
    dtypes = {tensor.dtype for source in sources for tensor in tensors(source)} - {torch.float32, torch.bool}
    if not dtypes:
        return Range.HALF
    return Range.WIDE if all(dtype.is_floating_point for dtype in dtypes) else Range.BEYOND


def _range_of_fill(node: torch.fx.Node, name: str, half: torch.dtype) -> Range:
    if name in ("arange", "linspace", "logspace"):
        return Range.BEYOND
    if name not in _FILL_ARGUMENTS:
        return Range.HALF
    position, keyword = _FILL_ARGUMENTS[name]
    value = node.kwargs.get(keyword, node.args[position] if len(node.args) > position else None)
    if isinstance(value, torch.fx.Node):
        return Range.HALF if is_float32(value) else Range.BEYOND
    return _range_of_number(float(value), half) if isinstance(value, int | float) else Range.HALF


def _range_of_scalars(node: torch.fx.Node, name: str, half: torch.dtype) -> Range:
    widest = Range.HALF
    for value in (*node.args, *node.kwargs.values()):  # lists are not searched: they contain sizes
        if isinstance(value, torch.fx.Node):
            is_size = isinstance(value.meta.get("val"), torch.SymInt | torch.SymFloat | int | float)
            widest = max(widest, Range.WIDE if is_size else Range.HALF)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            # a bound below 1 may be an epsilon, which half may round to 0
            is_bound = name in _CLAMPING_OPERATORS and 1.0 <= abs(value) <= torch.finfo(half).max
            widest = max(widest, Range.HALF if is_bound else _range_of_number(float(value), half))
    return widest


def _range_of_factors(node: torch.fx.Node, name: str, half: torch.dtype) -> Range:
    """`BEYOND` if the call multiplies or divides by a number outside half's normal range (rule 6), else `HALF`."""
    factors = [node.kwargs.get(keyword) for keyword in ("alpha", "beta", "value")]
    if name in ("mul", "multiply", "div", "divide", "true_divide"):
        factors += node.args
    limits = torch.finfo(half)
    is_beyond = any(
        isinstance(factor, int | float) and (0 < abs(factor) < limits.tiny or limits.max < abs(factor) < math.inf)
        for factor in factors
    )
    return Range.BEYOND if is_beyond else Range.HALF


def _is_clamped(node: torch.fx.Node, name: str, half: torch.dtype) -> bool:
    if name not in ("clamp", "clip", "hardtanh"):
        return False
    bounds = [
        node.args[position] if len(node.args) > position else node.kwargs.get(argument.name, argument.default_value)
        for position, argument in enumerate(node.target._schema.arguments[1:3], 1)
    ]
    return all(
        isinstance(bound, int | float) and math.isfinite(bound) and _range_of_number(bound, half) is Range.HALF
        for bound in bounds
    )


def _range_of_number(value: float, half: torch.dtype) -> Range:
    magnitude = abs(value)
    limits = torch.finfo(half)
    if not math.isfinite(value) or magnitude == 0.0:
        return Range.HALF
    if magnitude > limits.max:
        return Range.BEYOND
    return Range.WIDE if magnitude > _LARGEST_FINE_NUMBER or magnitude < limits.tiny else Range.HALF


def _range_of_tensor(tensor: torch.Tensor, half: torch.dtype) -> Range:
    if tensor.dtype is not torch.float32:
        return Range.HALF
    magnitudes = tensor.detach().abs().reshape(-1)
    magnitudes = magnitudes[torch.isfinite(magnitudes) & (magnitudes > 0)]
    if not magnitudes.numel():
        return Range.HALF
    return max(_range_of_number(float(magnitudes.max()), half), _range_of_number(float(magnitudes.min()), half))
