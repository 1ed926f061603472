"""Compute the result of ``run_decompositions({})`` for a program without writes. This avoids the retrace (1 s and more).

Export leaves few operators that a retrace changes: composite ones that may return their input (reshape, flatten,
dropout, to, chunk). Each is replaced with the operators that torch decomposes it into.

Rules
1. In doubt the program is retraced. This happens for operators whose schema allows writes, nested graphs, operators that
   copy or return their input because of autograd, assertions of values, sizes that no node computes, and strides that
   export left open.
2. torch decomposes an operator (``OpOverload.decompose``), with the shapes at its place in the graph.
3. The program that the caller passes is not changed.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._export.utils import _is_cia_op, _is_preservable_cia_op
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    OutputKind,
    TensorArgument,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._sympy.functions import Max, Min

_aten = torch.ops.aten
#: A retrace changes these in a way that this module does not reproduce.
_RETRACED = frozenset(
    {_aten.alias, _aten.detach, _aten.lift, _aten.lift_fresh, _aten.lift_fresh_copy, _aten.native_batch_norm}
)
_INPUTS = frozenset({InputKind.USER_INPUT, InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR})
#: The module of input sizes after a retrace.
_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"
_SCALARS = (torch.SymInt, torch.SymFloat, torch.SymBool)


class _Doubt(Exception):
    """The program has to be retraced."""


def decomposed(raw: ExportedProgram) -> ExportedProgram | None:
    """Return a functionalized copy of `raw`; None if it needs a retrace."""
    with contextlib.suppress(Exception):  # the retrace raises the error again
        return _GraphCopy(raw).program()
    return None


def is_composite(target: Any) -> bool:
    """Whether a retrace replaces the operator with others for every table of decompositions."""
    return isinstance(target, torch._ops.OpOverload) and _is_cia_op(target) and not _is_preservable_cia_op(target)


class _GraphCopy:
    """A copy of a graph under construction."""

    def __init__(self, raw: ExportedProgram) -> None:
        self._raw = raw
        self._graph = torch.fx.Graph()
        #: Node of the old graph → its copy: a node, or a list of nodes.
        self._copies: dict[torch.fx.Node, Any] = {}
        #: Expression of a size → the node that computes it.
        self._sizes: dict[Any, torch.fx.Node] = {}

    def program(self) -> ExportedProgram:
        raw = self._raw
        signature = raw.graph_signature
        if any(spec.kind not in _INPUTS for spec in signature.input_specs):
            raise _Doubt
        if any(spec.kind != OutputKind.USER_OUTPUT for spec in signature.output_specs):
            raise _Doubt
        for node in raw.graph.nodes:
            if node.op == "placeholder":
                self._add(node)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self._graph.output(self._mapped(node.args[0]))
            else:
                raise _Doubt
        self._graph.eliminate_dead_code()
        names = {
            node.name: TensorArgument(name=copied.name)
            for node, copied in self._copies.items()
            if node.op == "placeholder"
        }
        inputs = [
            spec if isinstance(spec.arg, ConstantArgument) else replace(spec, arg=names[spec.arg.name])
            for spec in signature.input_specs
        ]
        returned = pytree.tree_leaves(self._graph.output_node().args[0])
        outputs = []
        for spec, value in zip(signature.output_specs, returned, strict=True):
            if isinstance(spec.arg, TensorArgument):
                if not isinstance(value, torch.fx.Node) or value.op == "placeholder":
                    raise _Doubt
                spec = replace(spec, arg=TensorArgument(name=value.name))
            elif isinstance(value, torch.fx.Node):
                raise _Doubt
            outputs.append(spec)
        module = torch.fx.GraphModule({}, self._graph)
        return ExportedProgram(
            root=module,
            graph=module.graph,
            graph_signature=ExportGraphSignature(inputs, outputs),
            state_dict=raw.state_dict,
            range_constraints=raw.range_constraints,
            module_call_graph=raw.module_call_graph,
            example_inputs=None,
            constants=raw.constants,
        )

    def _mapped(self, value: Any) -> Any:
        return torch.fx.node.map_arg(value, lambda node: self._copies[node])

    def _add(self, node: torch.fx.Node) -> None:
        if isinstance(node.meta.get("val"), torch.Tensor) and _has_odd_strides(node.meta["val"]):
            raise _Doubt
        copy = self._copies[node] = self._graph.node_copy(node, lambda old: self._copies[old])
        self._remember_size(copy)

    def _remember_size(self, node: torch.fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, _SCALARS):
            self._sizes.setdefault(value.node.expr, node)

    def _call(self, node: torch.fx.Node) -> None:
        target = node.target
        if target is operator.getitem and isinstance(self._copies[node.args[0]], list | tuple):
            self._copies[node] = self._copies[node.args[0]][node.args[1]]
            return
        if target is _aten._assert_tensor_metadata.default:
            self._assertion(node)
            return
        if isinstance(target, torch._ops.OperatorBase):
            _refuse_effects(target)
        if "val" not in node.meta:
            raise _Doubt
        if is_composite(target):
            self._copies[node] = self._parts_of(node)
        else:
            self._add(node)

    def _assertion(self, node: torch.fx.Node) -> None:
        """Copy an assertion on a tensor in the form of a retrace, with keywords only where they are needed."""
        arguments = {
            **dict(zip((a.name for a in node.target._schema.arguments), node.args, strict=False)),
            **node.kwargs,
        }
        positional = [a.name for a in node.target._schema.arguments if not a.kwarg_only]
        while arguments.get(positional[-1]) is None:
            positional.pop()
        args = tuple(self._mapped(arguments.pop(name, None)) for name in positional)
        kwargs = {name: self._mapped(value) for name, value in arguments.items() if value is not None}
        self._copies[node] = copied = self._graph.call_function(node.target, args, kwargs)
        copied.meta = dict(node.meta)

    def _parts_of(self, node: torch.fx.Node) -> Any:
        """Copy a composite operator as its parts (rule 2). Returns the copy of its result."""
        tensors: dict[int, torch.fx.Node] = {}

        def value_of(argument: torch.fx.Node) -> Any:
            value = argument.meta["val"]
            if (
                isinstance(value, torch.Tensor)
                and tensors.setdefault(id(value), self._copies[argument]) is not self._copies[argument]
            ):
                raise _Doubt
            return value

        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), value_of)
        calls = _Calls()
        with calls, torch.no_grad():
            result = node.target.decompose(*args, **kwargs)
        if result is NotImplemented:
            raise _Doubt
        for function, call_args, call_kwargs, output in calls.seen:
            mapped = pytree.tree_map(lambda leaf: self._operand(leaf, tensors), (call_args, call_kwargs))
            call = self._new(function, mapped[0], mapped[1], node, output)
            if isinstance(output, torch.Tensor):
                tensors[id(output)] = call
                continue
            for number, part in enumerate(output):
                tensors[id(part)] = self._new(operator.getitem, (call, number), {}, node, part)
        return pytree.tree_map(lambda leaf: self._operand(leaf, tensors), result)

    def _operand(self, leaf: Any, tensors: Mapping[int, torch.fx.Node]) -> Any:
        if isinstance(leaf, torch.Tensor):
            if id(leaf) not in tensors:
                raise _Doubt
            return tensors[id(leaf)]
        if isinstance(leaf, _SCALARS):
            return self._size(leaf)
        return leaf

    def _size(self, size: Any) -> torch.fx.Node:
        """The node that computes a size; a new one if the size is that of an input's axis."""
        expression = size.node.expr
        if expression not in self._sizes:
            axes = (
                (node, axis, length)
                for node in self._graph.find_nodes(op="placeholder")
                for axis, length in enumerate(getattr(node.meta["val"], "shape", ()))
            )
            for node, axis, length in axes:
                if isinstance(length, torch.SymInt) and length.node.expr == expression:
                    with self._graph.inserting_after(self._last_input()):
                        new_node = self._graph.call_function(_aten.sym_size.int, (node, axis))
                    new_node.meta = {"val": length, "nn_module_stack": {_NO_MODULE: (_NO_MODULE, _NO_MODULE)}}
                    self._remember_size(new_node)
                    break
            else:
                raise _Doubt
        return self._sizes[expression]

    def _last_input(self) -> torch.fx.Node:
        """The last of the nodes for inputs and their sizes. These nodes are the first ones of a retraced graph."""
        nodes = itertools.takewhile(_is_input, self._graph.nodes)
        return deque(nodes, maxlen=1).pop()

    def _new(
        self, target: Callable[..., Any], args: Any, kwargs: Any, origin: torch.fx.Node, value: Any
    ) -> torch.fx.Node:
        new_node = self._graph.call_function(target, args, kwargs)
        new_node.meta = {**origin.meta, "val": value}
        return new_node


class _Calls(TorchDispatchMode):
    """Records the calls of operators that are not composite."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function.namespace == "prim":  # reads the device of a tensor
            return function(*args, **kwargs)
        if is_composite(function):
            with self:
                result = function.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        _refuse_effects(function)
        result = function(*args, **kwargs)
        leaves = [result] if isinstance(result, torch.Tensor) else result
        if not isinstance(leaves, list | tuple) or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            raise _Doubt
        self.seen.append((function, args, kwargs, result))
        return result


def _has_odd_strides(tensor: torch.Tensor) -> bool:
    """Whether a stride is the minimum or maximum of two expressions. A retrace would decide which of the two it is."""
    return any(isinstance(stride, torch.SymInt) and stride.node.expr.has(Min, Max) for stride in tensor.stride())


def _is_input(node: torch.fx.Node) -> bool:
    return node.op == "placeholder" or node.target is _aten.sym_size.int


def _refuse_effects(target: Any) -> None:
    """Raise `_Doubt` for an operator that may write, or has another effect (rule 1)."""
    if not isinstance(target, torch._ops.OpOverload):
        raise _Doubt
    if target._schema.is_mutable or not target._schema.returns or target.overloadpacket in _RETRACED:
        raise _Doubt
