"""Decide which float32 nodes compute in half: float16 or bfloat16, as the node's module requests.

The ranges of values (`ranges.py`, rule 1) are, from narrow to wide:
* `HALF`: the value fits half.
* `MIXED`: the value is computed from an `UNSEEN` value and an activation.
* `UNSEEN`: the value is an input or a weight, or computed from these alone by operators that keep the range.
* `WIDE`: the value may leave the range of half, or needs more digits.
* `BEYOND`: the value may contain numbers that half cannot represent, such as ``finfo.min``.

Rules 1 to 4 decide about the nodes of modules that request half, and rule 6 about those of other modules.

Rules
1. Matrix products and convolutions are half, or float32 if an input or a factor is `BEYOND`. Then their results are `WIDE`.
2. Arithmetic is float32 if an input or the result is `WIDE` or wider, or if all readers of the result are float32
   (squares before a mean, masked scores before softmax). Otherwise it is half. Batch normalization with the model's own
   statistics counts as arithmetic. But it is float32 if it reads an input of the model, because the input may be too large
   for half before it is normalized.
3. Data movement is float32 if its result is `WIDE` or wider. Otherwise it is half if an input is half, or if no float32
   operator reads the result. In all other cases it is float32.
4. Each repeated module (a module with a number in its path, such as ``layers.3``) is decided separately: in rules 2 and
   3, readers in other repeated modules do not count as float32 readers. They get a `HALF`, `MIXED` or `UNSEEN` value in
   half. So equal layers stay equal, including the first and the last, and are built once. There is one exception: an
   `UNSEEN` value may be a mask, a `MIXED` value may contain one, and half turns ``finfo.min`` into -inf. So comparisons,
   and float32 arithmetic before exponentials (softmax), read such a value without a cast. The operator that computes the
   value for them is float32, too (`Rule.MASK`), even if other operators read the value in half (the scores that the next
   layer adds to its own). The last layer may differ from the others then, because no layer reads its values.
5. The program's inputs and outputs belong to the model itself, not to the layer that reads or computes them.
6. All nodes of a module that requests float32 are float32. They read and return float32 values without a cast to half, also
   across repeated modules.
7. A float16 value is cast if a bfloat16 node reads it, and the other way round. For data movement and comparisons in one of
   these types, values in the other type do not count as half.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Mapping, Set
from dataclasses import dataclass

import torch

from trtbuild.stages.lower.half_precision.operators import EXPONENTIAL_OPERATORS, Role, row_of
from trtbuild.stages.lower.half_precision.ranges import Range, is_float32, tensors, widest_input
from trtbuild.stages.lower.modules import path_of

#: The roles of operators that compute floats, in half or in float32.
_COMPUTING_ROLES = (Role.CONTRACTION, Role.ELEMENTWISE, Role.SCALING)

#: Node → the range of its value.
Ranges = Mapping[torch.fx.Node, Range]


def repeat_of(node: torch.fx.Node) -> str:
    """The path of the innermost repeated module that `node` belongs to, such as ``layers.3``, or ""."""
    parts = path_of(node).split(".")
    while parts and not parts[-1].isdigit():
        parts.pop()
    return ".".join(parts)


def role_of(node: torch.fx.Node) -> Role:
    """The role of a call node. For an item of a tuple, it is `MOVE`. For another call, it is `KEEP` if the call reads or
    returns a floating or complex type other than float32, if it accumulates (`index_put`), or if it is a `SCALING` call
    without parameters. Otherwise the table of operators has the role."""
    if node.target is operator.getitem:
        return Role.MOVE
    for value in (node, *node.all_input_nodes):
        for tensor in tensors(value):
            if tensor.dtype is not torch.float32 and (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
                return Role.KEEP
    role = row_of(node.target).role
    if _accumulates(node) or (role is Role.SCALING and not _has_parameters(node)):
        return Role.KEEP
    return role


class Rule(enum.Enum):
    """Why a node is float32. The values are the names in ``inspect --precision``."""

    MODULE = "module"
    OPERATOR = "operator"
    RANGE = "range"
    READERS = "readers"
    MASK = "mask"
    MODEL_INPUT = "model input"


@dataclass(frozen=True)
class Dtypes:
    """The decisions for one graph, and the arguments from which they follow."""

    #: Call node that computes in half → float16 or bfloat16. All other calls keep their dtype.
    half: Mapping[torch.fx.Node, torch.dtype]
    #: The dtype that the model itself requests.
    default: torch.dtype
    #: Call node → the dtype that its module requests.
    requested: Mapping[torch.fx.Node, torch.dtype]
    #: Node → why it is float32. Two kinds of nodes may compute in half in spite of their rule: comparisons with
    #: `Rule.OPERATOR`, if all float inputs are half, and data movement with `Rule.READERS`, if an input is.
    rules: Mapping[torch.fx.Node, Rule]
    weights_and_constants: Set[torch.fx.Node]
    #: The nodes that read a `MIXED` or `UNSEEN` value without a cast (rule 4).
    without_cast: Set[torch.fx.Node]
    #: Half type → the range of each node.
    ranges: Mapping[torch.dtype, Ranges]

    def dtype_of(self, node: torch.fx.Node) -> torch.dtype:
        """The dtype that the float32 values of `node` get."""
        return self.half.get(node, torch.float32)

    def half_between_modules(self, source: torch.fx.Node, reader: torch.fx.Node) -> torch.dtype | None:
        """The half type in which `reader` reads a float32 `source` from another repeated module (rules 4 and 6), or None.

        The reader's module requests this type. If the reader is an output of the model, the source's module does.
        """
        if source in self.weights_and_constants or repeat_of(source) == repeat_of(reader):
            return None
        requested = [self.requested[node] for node in (source, reader) if node in self.requested]
        if torch.float32 in requested or not requested:
            return None
        half = requested[-1]
        source_range = self.ranges[half][source]
        is_half = source_range is Range.HALF or (_may_be_mask(source_range) and reader not in self.without_cast)
        return half if is_half else None

    def half_of_operand(self, source: torch.fx.Node, reader: torch.fx.Node) -> torch.dtype | None:
        """The half type in which `reader` reads `source`; None for float32."""
        return self.half.get(source) or self.half_between_modules(source, reader)


def decide_dtypes(
    graph: torch.fx.Graph,
    weights_and_constants: Set[torch.fx.Node],
    default: torch.dtype,
    requested: Mapping[torch.fx.Node, torch.dtype],
    ranges: Mapping[torch.dtype, Ranges],
) -> Dtypes:
    """Decide the dtypes of all nodes of `graph`. The arguments are fields of `Dtypes`. `ranges` has the result of
    `trtbuild.stages.lower.half_precision.ranges.find_ranges` for each half type in `requested`."""
    rules, without_cast = _find_float32_nodes(graph, requested, ranges)
    half: dict[torch.fx.Node, torch.dtype] = {}
    dtypes = Dtypes(half, default, requested, rules, weights_and_constants, without_cast, ranges)
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        sources = [source for source in node.all_input_nodes if is_float32(source)]
        if node.target is operator.getitem:
            if sources and sources[0] in half:
                half[node] = half[sources[0]]
            continue
        dtype = requested[node]
        if dtype is torch.float32:
            continue
        read_in_half = [dtypes.half_of_operand(source, node) is dtype for source in sources]
        role = role_of(node)
        if role is Role.COMPARE:
            is_half = bool(sources) and all(read_in_half)
        elif not sources or not is_float32(node):
            is_half = False
        elif role is Role.MOVE:
            is_mask = _may_be_mask(ranges[dtype][node]) and node in without_cast
            follows_half = any(read_in_half) and not is_mask
            is_half = ranges[dtype][node] < Range.WIDE and (follows_half or node not in rules)
        else:
            is_half = role in _COMPUTING_ROLES and node not in rules
        if is_half:
            half[node] = dtype
    return dtypes


def _find_float32_nodes(
    graph: torch.fx.Graph,
    requested: Mapping[torch.fx.Node, torch.dtype],
    ranges_by_dtype: Mapping[torch.dtype, Ranges],
) -> tuple[dict[torch.fx.Node, Rule], set[torch.fx.Node]]:
    """Return `Dtypes.rules` and `Dtypes.without_cast`. The readers of a node are decided before the node."""
    in_float32: dict[torch.fx.Node, Rule] = {}
    without_cast: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op != "call_function":
            continue
        role = role_of(node)
        readers = [user for user in node.users if user.op == "output" or role_of(user) is not Role.SHAPE]
        is_before_exponential = any(user in without_cast for user in readers)
        if role is Role.COMPARE or getattr(node.target, "_opname", "") in EXPONENTIAL_OPERATORS:
            without_cast.add(node)
        if requested[node] is torch.float32:
            in_float32[node] = Rule.MODULE
            if is_before_exponential and role in (Role.ELEMENTWISE, Role.SCALING, Role.MOVE):
                without_cast.add(node)
            continue
        ranges = ranges_by_dtype[requested[node]]
        if role in (Role.KEEP, Role.COMPARE):
            in_float32[node] = Rule.OPERATOR
        if role is Role.KEEP or not is_float32(node):
            continue
        local_readers = [user for user in readers if repeat_of(user) == repeat_of(node)]
        float32_readers = [user for user in local_readers if user.op == "output" or user in in_float32]
        may_be_mask = _may_be_mask(ranges[node]) and is_before_exponential
        if ranges[node] is Range.UNSEEN:  # rule 6
            may_be_mask |= any(in_float32.get(user) is Rule.MODULE for user in readers)
        rule = _rule_of_ranges(node, role, ranges)
        if rule is None and role is not Role.CONTRACTION:
            is_arithmetic = role in (Role.ELEMENTWISE, Role.SCALING)
            if float32_readers and (not is_arithmetic or len(float32_readers) == len(readers)):  # rules 2 and 3
                rule = Rule.READERS
            elif may_be_mask:
                rule = Rule.MASK
        if rule is not None:
            in_float32.setdefault(node, rule)
        if may_be_mask or (rule is not None and any(user in without_cast for user in local_readers)):
            without_cast.add(node)
    return in_float32, without_cast


def _rule_of_ranges(node: torch.fx.Node, role: Role, ranges: Ranges) -> Rule | None:
    """The rule that keeps `node` in float32 because of the ranges of its inputs and result (rules 1 to 3), or None."""
    is_arithmetic = role in (Role.ELEMENTWISE, Role.SCALING)
    if ranges[node] >= Range.WIDE or (is_arithmetic and widest_input(node, ranges) >= Range.WIDE):
        return Rule.RANGE
    if role is Role.SCALING and ranges[node.all_input_nodes[0]] is Range.UNSEEN:
        return Rule.MODEL_INPUT
    return None


def _may_be_mask(range_: Range) -> bool:
    return range_ in (Range.MIXED, Range.UNSEEN)


def _has_parameters(node: torch.fx.Node) -> bool:
    # The ONNX translation replaces omitted parameters by constants of the input's type. With a half input, their type would
    # differ from that of the mean and the variance.
    return all(isinstance(value, torch.fx.Node) for value in node.args[:5])


def _accumulates(node: torch.fx.Node) -> bool:
    # index_put(self, indices, values, accumulate) is a sum with `accumulate`, and data movement without it
    return getattr(node.target, "_opname", "") in ("index_put", "_unsafe_index_put") and (
        node.args[3:4] == (True,) or node.kwargs.get("accumulate") is True
    )
