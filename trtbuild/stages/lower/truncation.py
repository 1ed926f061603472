"""Compute float64 in float32, if the model is built with ``truncate_double``.

Rules
1. Inputs, weights, constants and outputs keep their types. A cast to float32 comes after each input, weight or constant
   that is read, and a cast to float64 before each output.
2. A call computes in float32 if all its float64 operands and results can be float32: the operator gives the same shapes,
   and no other type changes. Every other call keeps float64, between casts, and stays in PyTorch: complex numbers, nested
   graphs, sizes that depend on data.
3. A number in the graph that float32 cannot hold (1e300, 1e-50) keeps its call in float64. The largest and the smallest
   finite float64 become those of float32, because attention masks contain them.
4. The pass comes after `precision`, so these values are float32 also in a model with float16.
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
from trtbuild.stages.lower.propagate import propagate
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_cast = torch.ops.aten._to_copy.default
_WIDE, _NARROW = torch.float64, torch.float32
_LARGEST: Mapping[float, float] = {
    torch.finfo(_WIDE).max: torch.finfo(_NARROW).max,
    torch.finfo(_WIDE).min: torch.finfo(_NARROW).min,
}


class _NotNarrow(Exception):
    """A number does not fit float32 (rule 3)."""


def truncate_doubles(program: Program, request: Request) -> Program:
    """Change `program` in place to compute float64 in float32, if `request` says so."""
    if request.truncates_double:
        _Truncation(program.graph).run()
        for spec, node in zip(program.exported.graph_signature.output_specs, program.output_nodes, strict=True):
            spec.arg.name = node.name
        program.exported.graph_module.recompile()
    return program


class _Truncation:
    def __init__(self, graph: torch.fx.Graph) -> None:
        self._graph = graph
        #: The nodes with a float64 value before the pass.
        self._wide = {node for node in graph.nodes if _has(node, _WIDE)}
        #: (node, type) → the cast of its value.
        self._casts: dict[tuple[torch.fx.Node, torch.dtype], torch.fx.Node] = {}

    def run(self) -> None:
        if not self._wide:
            return
        for node in list(self._graph.nodes):
            if node.op == "output":
                self._restore(node)
            elif node.op == "call_function" and (node in self._wide or self._wide.intersection(node.all_input_nodes)):
                if node.target is operator.getitem:
                    propagate(node)
                elif not self._narrow(node):
                    self._restore(node)
        self._drop_identities()
        self._graph.eliminate_dead_code()

    def _narrow(self, node: torch.fx.Node) -> bool:
        """Make a call compute in float32. Returns False, and leaves the call as it was, if it cannot (rules 2 and 3)."""
        old_value = node.meta.get("val")
        if not isinstance(node.target, torch._ops.OpOverload) or _depends_on_data(old_value):
            return False
        old = node.args, node.kwargs
        try:
            args, kwargs = pytree.tree_map(self._narrow_argument(node), old)
            node.args, node.kwargs = args, kwargs
            propagate(node)
            if _types(node.meta["val"]) == _types(old_value, {_WIDE: _NARROW}):
                return True
        except Exception:  # an operator may refuse float32 with any error
            pass
        node.args, node.kwargs = old
        node.meta["val"] = old_value
        return False

    def _narrow_argument(self, reader: torch.fx.Node) -> Any:
        def narrow(value: Any) -> Any:
            if isinstance(value, torch.fx.Node):
                return self._cast(value, _NARROW, reader) if _is(value, _WIDE) else value
            if value is _WIDE:
                return _NARROW
            return _number(value) if isinstance(value, float) else value

        return narrow

    def _restore(self, node: torch.fx.Node) -> None:
        """Give a reader that keeps float64 its operands in float64."""
        for source in node.all_input_nodes:
            if source in self._wide and _is(source, _NARROW):
                node.replace_input_with(source, self._cast(source, _WIDE, node))

    def _cast(self, source: torch.fx.Node, dtype: torch.dtype, reader: torch.fx.Node) -> torch.fx.Node:
        """Cast a value, before its first reader. A cast to float64 belongs to the module that computed the value."""
        is_result = dtype is _WIDE and source.op == "call_function"
        stack: Stack = stack_of(source) if is_result else stack_of(reader)
        cast = self._casts.get((source, dtype))
        if cast is None:
            with self._graph.inserting_before(reader):
                cast = self._graph.call_function(_cast, (source,), {"dtype": dtype})
            propagate(cast)
            set_stack(cast, stack)
            self._casts[source, dtype] = cast
        elif dtype is _NARROW:
            set_stack(cast, common_stack([stack_of(cast), stack]))
        return cast

    def _drop_identities(self) -> None:
        """Remove casts of the model that cast float32 to float32 now."""
        outputs = self._graph.output_node().all_input_nodes
        for node in list(self._graph.nodes):
            if node.target is _cast and node not in outputs and node.kwargs == {"dtype": _NARROW}:
                (source,) = node.args
                if _is(source, _NARROW) and _strides(source) == _strides(node):
                    node.replace_all_uses_with(source)
                    self._graph.erase_node(node)


def _number(value: float) -> float:
    """`value` if float32 can hold it (rule 3). Raises _NotNarrow."""
    if value in _LARGEST:
        return _LARGEST[value]
    limits = torch.finfo(_NARROW)
    if value and math.isfinite(value) and not limits.tiny <= abs(value) <= limits.max:
        raise _NotNarrow
    return value


def _leaves(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _has(node: torch.fx.Node, dtype: torch.dtype) -> bool:
    return any(leaf.dtype is dtype for leaf in _leaves(node.meta.get("val")))


def _is(node: torch.fx.Node, dtype: torch.dtype) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype is dtype


def _types(value: Any, renamed: dict[torch.dtype, torch.dtype] | None = None) -> list[Any]:
    """The dtype and sizes of each tensor. Sizes are expressions: comparing SymInts would add guards."""
    return [((renamed or {}).get(leaf.dtype, leaf.dtype), _sizes(leaf.shape)) for leaf in _leaves(value)]


def _strides(node: torch.fx.Node) -> list[Any]:
    return _sizes(node.meta["val"].stride())


def _sizes(sizes: Any) -> list[Any]:
    return [size.node.expr if isinstance(size, torch.SymInt) else size for size in sizes]


def _depends_on_data(value: Any) -> bool:
    return any(free_unbacked_symbols(list(leaf.shape)) for leaf in _leaves(value))
