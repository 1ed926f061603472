"""Decide which float32 nodes compute in half: backward from the readers of a value, then forward for data movement.

`HALF`, `UNSEEN`, `WIDE` and `BEYOND` are the ranges of values (module `ranges`).

Rules
1. Matrix products and convolutions are half, or float32 if an input is `BEYOND`.
2. Arithmetic is float32 if an input or the result is `WIDE` or wider, or if all its readers are float32 (the square under a
   mean, the mask on a score before softmax). Otherwise it is half. Batch normalization with the model's own statistics
   counts as arithmetic on an activation. On an input of the model it is float32, because it brings the values into half's
   range.
3. Data movement has the dtype of its input. If this dtype is float32 and no float32 operator reads the result, data
   movement is half.
4. Each repeated module (a module with a number in its path, such as ``layers.3``) is decided separately. In rules 2 and 3,
   a reader in another repeated module does not count as a float32 reader. It gets a `HALF` or `UNSEEN` value in half. So
   equal layers stay equal, including the first and the last, and are built once. There is one exception: an `UNSEEN` value
   may be a mask, and half turns ``finfo.min`` into -inf. So comparisons, and float32 arithmetic that ends in exponentials,
   read such a value without a cast.
5. The program's inputs and outputs belong to the model itself, not to the layer that reads or computes them.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Set
from dataclasses import dataclass

import torch

from trtbuild.stages.lower.half_precision.operators import EXPONENTIAL_OPERATORS, Role, row_of
from trtbuild.stages.lower.half_precision.ranges import Range, is_float32, tensors, widest_input
from trtbuild.stages.lower.modules import path_of

#: The roles of operators that compute floats, in either precision.
_COMPUTING_ROLES = (Role.CONTRACTION, Role.ELEMENTWISE, Role.SCALING)

Ranges = Mapping[torch.fx.Node, Range]


def repeat_of(node: torch.fx.Node) -> str:
    """The path of the innermost repeated module that `node` belongs to, such as ``layers.3``; "" if `node` is outside of
    all repeated modules."""
    parts = path_of(node).split(".")
    while parts and not parts[-1].isdigit():
        parts.pop()
    return ".".join(parts)


def role_of(node: torch.fx.Node) -> Role:
    """The role of a call node. A node that reads or returns a floating type other than float32 keeps its dtype."""
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


@dataclass(frozen=True)
class Dtypes:
    """The decisions for one graph. `half` contains the call nodes that compute in half. All other calls keep their dtype.

    `without_cast` contains the nodes that read an `UNSEEN` value without a cast. `ranges` are the ranges of all nodes.
    """

    half: Set[torch.fx.Node]
    weights_and_constants: Set[torch.fx.Node]
    without_cast: Set[torch.fx.Node]
    ranges: Ranges

    def crosses_in_half(self, source: torch.fx.Node, reader: torch.fx.Node) -> bool:
        """Whether `reader` reads `source` from another repeated module, in half (rule 4)."""
        if source in self.weights_and_constants or repeat_of(source) == repeat_of(reader):
            return False
        source_range = self.ranges[source]
        return source_range is Range.HALF or (source_range is Range.UNSEEN and reader not in self.without_cast)


def decide_dtypes(graph: torch.fx.Graph, weights_and_constants: Set[torch.fx.Node], ranges: Ranges) -> Dtypes:
    """Decide the dtypes of all nodes of `graph`. `ranges` is the result of
    `trtbuild.stages.lower.half_precision.ranges.find_ranges`."""
    in_float32, without_cast = _find_float32_nodes(graph, ranges)
    half: set[torch.fx.Node] = set()
    dtypes = Dtypes(half, weights_and_constants, without_cast, ranges)
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        sources = [source for source in node.all_input_nodes if is_float32(source)]
        arrives_in_half = [source in half or dtypes.crosses_in_half(source, node) for source in sources]
        role = role_of(node)
        if node.target is operator.getitem:
            is_half = sources != [] and sources[0] in half
        elif role is Role.COMPARE:
            is_half = bool(sources) and all(arrives_in_half)
        elif not sources or not is_float32(node):
            is_half = False
        elif role is Role.MOVE:
            is_half = ranges[node] < Range.WIDE and (any(arrives_in_half) or node not in in_float32)
        else:
            is_half = role in _COMPUTING_ROLES and node not in in_float32
        if is_half:
            half.add(node)
    return dtypes


def _find_float32_nodes(graph: torch.fx.Graph, ranges: Ranges) -> tuple[set[torch.fx.Node], set[torch.fx.Node]]:
    """Return two sets: the nodes whose value is needed in float32, and the nodes that read their input without a cast.

    Data movement in the first set is float32 only if its input is float32.
    """
    in_float32: set[torch.fx.Node] = set()
    without_cast: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op != "call_function":
            continue
        role = role_of(node)
        if role in (Role.KEEP, Role.COMPARE):
            in_float32.add(node)
            if role is Role.COMPARE or getattr(node.target, "_opname", "") in EXPONENTIAL_OPERATORS:
                without_cast.add(node)
        if role is Role.KEEP or not is_float32(node):
            continue
        readers = [user for user in node.users if user.op == "output" or role_of(user) is not Role.SHAPE]
        local_readers = [user for user in readers if repeat_of(user) == repeat_of(node)]
        float32_readers = [user for user in local_readers if user.op == "output" or user in in_float32]
        is_read_without_cast = ranges[node] is Range.UNSEEN and any(user in without_cast for user in readers)
        if role is Role.CONTRACTION:
            needs_float32 = widest_input(node, ranges) is Range.BEYOND
        elif role in (Role.ELEMENTWISE, Role.SCALING):
            all_in_float32 = bool(readers) and len(float32_readers) == len(readers)
            reads_model_input = role is Role.SCALING and ranges[node.all_input_nodes[0]] is Range.UNSEEN
            is_wide = max(widest_input(node, ranges), ranges[node]) >= Range.WIDE
            needs_float32 = is_wide or reads_model_input or all_in_float32 or is_read_without_cast
        else:
            needs_float32 = ranges[node] >= Range.WIDE or bool(float32_readers) or is_read_without_cast
        if needs_float32:
            in_float32.add(node)
        if is_read_without_cast or (needs_float32 and any(user in without_cast for user in local_readers)):
            without_cast.add(node)
    return in_float32, without_cast


def _has_parameters(node: torch.fx.Node) -> bool:
    # for omitted parameters, the translation writes constants of the input's type beside a float32 mean and variance
    return all(isinstance(value, torch.fx.Node) for value in node.args[:5])


def _accumulates(node: torch.fx.Node) -> bool:
    # index_put(self, indices, values, accumulate): with accumulate it is a sum
    return getattr(node.target, "_opname", "") in ("index_put", "_unsafe_index_put") and (
        node.args[3:4] == (True,) or node.kwargs.get("accumulate") is True
    )
