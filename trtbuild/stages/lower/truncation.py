"""Compute float64 operations in float32, if the model is built with ``truncate_double``.

Rules
1. Inputs, weights, constants and outputs keep their types. If they are float64, casts stand between them and the calls that
   compute in float32.
2. A call computes in float32 if its operator accepts float32 operands and then returns float32 instead of float64,
   without another change of dtypes or shapes. All other calls keep float64 and stay in PyTorch, with casts around them.
   Examples are calls with complex numbers, with nested graphs, or with sizes that depend on data.
3. A call keeps float64 if a number among its arguments is outside the range of float32 (1e300, 1e-50). The largest and
   the lowest finite float64 become those of float32, because attention masks contain these numbers. A constant with
   numbers beyond float32 and without infinities is clamped before its cast. The numbers of weights and inputs are not
   known here.
4. This pass comes after the pass `precision`, so float64 values become float32, even if the model's precision is float16.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from trtbuild.stages.lower.modules import Stack, common_stack, set_stack, stack_of
from trtbuild.stages.lower.propagate import expressions, propagate
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_TO_COPY = torch.ops.aten._to_copy.default
_WIDE, _NARROW = torch.float64, torch.float32
_FLOAT32_LIMITS: Mapping[float, float] = {
    torch.finfo(_WIDE).max: torch.finfo(_NARROW).max,
    torch.finfo(_WIDE).min: torch.finfo(_NARROW).min,
}


class _Unrepresentable(Exception):
    """A number among the arguments of a call is outside the range of float32 (rule 3)."""


def truncate_doubles(program: Program, request: Request) -> Program:
    if request.truncates_double:
        _Truncation(program).run()
        program.rename_outputs()
        program.exported.graph_module.recompile()
    return program


class _Truncation:
    def __init__(self, program: Program) -> None:
        self._graph = graph = program.graph
        self._constants = program.constants
        #: The nodes that had a float64 value before the pass.
        self._float64_nodes = {node for node in graph.nodes if _has_dtype(node, _WIDE)}
        #: (node, type) → the cast of its value to this type.
        self._casts: dict[tuple[torch.fx.Node, torch.dtype], torch.fx.Node] = {}

    def run(self) -> None:
        if not self._float64_nodes:
            return
        for node in list(self._graph.nodes):
            if node.op == "output":
                self._restore_operands(node)
            elif node.op == "call_function" and (
                node in self._float64_nodes or self._float64_nodes.intersection(node.all_input_nodes)
            ):
                if node.target is operator.getitem:
                    propagate(node)
                elif not self._compute_in_float32(node):
                    self._restore_operands(node)
        self._drop_casts_without_effect()
        self._graph.eliminate_dead_code()

    def _compute_in_float32(self, node: torch.fx.Node) -> bool:
        """Make a call compute in float32 if rules 2 and 3 allow it. Returns whether they do."""
        old_value = node.meta.get("val")
        if not isinstance(node.target, torch._ops.OpOverload) or _depends_on_data(old_value):
            return False
        old = node.args, node.kwargs
        try:
            args, kwargs = pytree.tree_map(self._argument_caster(node), old)
            node.args, node.kwargs = args, kwargs
            propagate(node)
            if _types(node.meta["val"]) == _types(old_value, {_WIDE: _NARROW}):
                return True
        except Exception:  # an operator may refuse float32 with any error
            pass
        node.args, node.kwargs = old
        node.meta["val"] = old_value
        return False

    def _argument_caster(self, reader: torch.fx.Node) -> Any:
        def narrow(value: Any) -> Any:
            if isinstance(value, torch.fx.Node):
                return self._cast_value(value, _NARROW, reader) if _is_tensor_of(value, _WIDE) else value
            if value is _WIDE:
                return _NARROW
            return _float32_number(value) if isinstance(value, float) else value

        return narrow

    def _restore_operands(self, node: torch.fx.Node) -> None:
        """Cast the operands of `node` back to float64. The node is an output or a call that keeps float64."""
        for source in node.all_input_nodes:
            if source in self._float64_nodes and _is_tensor_of(source, _NARROW):
                node.replace_input_with(source, self._cast_value(source, _WIDE, node))

    def _cast_value(self, source: torch.fx.Node, dtype: torch.dtype, reader: torch.fx.Node) -> torch.fx.Node:
        """Return the cast of a value. If it does not exist yet, insert it before `reader`.

        A cast to float64 belongs to the module of the call that computed the value. A cast to float32 belongs to the
        innermost module around its readers.
        """
        is_result = dtype is _WIDE and source.op == "call_function"
        stack: Stack = stack_of(source) if is_result else stack_of(reader)
        cast = self._casts.get((source, dtype))
        if cast is None:
            operand = source
            if dtype is _NARROW and self._exceeds_float32(source):
                limits = torch.finfo(_NARROW)
                operand = self._insert(reader, stack, torch.ops.aten.clamp.default, source, limits.min, limits.max)
            cast = self._insert(reader, stack, _TO_COPY, operand, dtype=dtype)
            self._casts[source, dtype] = cast
        elif dtype is _NARROW:
            set_stack(cast, common_stack([stack_of(cast), stack]))
        return cast

    def _insert(self, reader: torch.fx.Node, stack: Stack, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        with self._graph.inserting_before(reader):
            call = self._graph.call_function(target, args, kwargs)
        propagate(call)
        set_stack(call, stack)
        return call

    def _exceeds_float32(self, source: torch.fx.Node) -> bool:
        """Whether `source` is a constant with finite numbers beyond float32, and without infinities (rule 3)."""
        constant = self._constants.get(source.name) if source.op == "placeholder" else None
        if constant is None or constant.isinf().any():
            return False
        return bool((constant.abs() > torch.finfo(_NARROW).max).any())

    def _drop_casts_without_effect(self) -> None:
        """Remove the model's own casts to float32 whose input is float32 after this pass."""
        outputs = self._graph.output_node().all_input_nodes
        for node in list(self._graph.nodes):
            if node.target is _TO_COPY and node not in outputs and node.kwargs == {"dtype": _NARROW}:
                (source,) = node.args
                if _is_tensor_of(source, _NARROW) and _strides(source) == _strides(node):
                    node.replace_all_uses_with(source)
                    self._graph.erase_node(node)


def _float32_number(value: float) -> float:
    """Return the number that replaces `value` in the arguments of a call in float32. Raises _Unrepresentable (rule 3)."""
    if value in _FLOAT32_LIMITS:
        return _FLOAT32_LIMITS[value]
    limits = torch.finfo(_NARROW)
    if value and math.isfinite(value) and not limits.tiny <= abs(value) <= limits.max:
        raise _Unrepresentable
    return value


def _leaves(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _has_dtype(node: torch.fx.Node, dtype: torch.dtype) -> bool:
    return any(leaf.dtype is dtype for leaf in _leaves(node.meta.get("val")))


def _is_tensor_of(node: torch.fx.Node, dtype: torch.dtype) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype is dtype


def _types(value: Any, replaced_dtypes: dict[torch.dtype, torch.dtype] | None = None) -> list[Any]:
    """The dtype and sizes of each tensor. Sizes are expressions: comparing SymInts would add guards."""
    return [((replaced_dtypes or {}).get(leaf.dtype, leaf.dtype), expressions(leaf.shape)) for leaf in _leaves(value)]


def _strides(node: torch.fx.Node) -> list[Any]:
    return expressions(node.meta["val"].stride())


def _depends_on_data(value: Any) -> bool:
    return any(free_unbacked_symbols(list(leaf.shape)) for leaf in _leaves(value))
