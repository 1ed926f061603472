"""Compute the result of ``run_decompositions({})`` for a program without writes, faster than torch.

torch traces the whole program again for this (a *retrace*), which takes a second or more. A retrace changes few operators:
composite operators that may return their input (reshape, flatten, dropout, to, chunk). Here the graph is copied, and each
composite operator is replaced with the operators into which torch decomposes it.

Rules
1. If this module might give another result than a retrace, it returns None, and the caller retraces the program. This is so
   if the program has nested graphs, assertions about values, operators that may write, or `_RETRACED_OPERATORS`. It is
   also so for inputs that are objects, for outputs that are inputs or computed numbers, for sizes that no input has and no
   node computes, and for strides that torch.export has not decided. Any error has the same effect.
2. torch itself decomposes an operator (``OpOverload.decompose``), with the shapes at its place in the graph.
3. The caller's program is not changed.
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
#: A retrace changes calls of these operators in a way that this module does not reproduce.
_RETRACED_OPERATORS = frozenset(
    {_aten.alias, _aten.detach, _aten.lift, _aten.lift_fresh, _aten.lift_fresh_copy, _aten.native_batch_norm}
)
_INPUT_KINDS = frozenset({InputKind.USER_INPUT, InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR})
#: After a retrace, nodes that compute the size of an input have this name as their module.
_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"
_SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)


class _RetraceNeeded(Exception):
    """The program has to be retraced."""


def decompose_without_retrace(raw: ExportedProgram) -> ExportedProgram | None:
    """Return a decomposed copy of `raw`; None if `raw` needs a retrace (rule 1)."""
    with contextlib.suppress(Exception):  # the retrace raises the error again
        return _GraphCopy(raw).program()
    return None


def is_composite(target: Any) -> bool:
    """Whether ``run_decompositions({})`` decomposes the operator, although its table of decompositions is empty."""
    return isinstance(target, torch._ops.OpOverload) and _is_cia_op(target) and not _is_preservable_cia_op(target)


class _GraphCopy:
    """Copies the nodes of a graph one by one, and decomposes the composite operators."""

    def __init__(self, raw: ExportedProgram) -> None:
        self._raw = raw
        self._graph = torch.fx.Graph()
        #: Node of the old graph → its copy: a node, or a list of nodes for a decomposed operator with several results.
        self._copies: dict[torch.fx.Node, Any] = {}
        #: Expression of a size → the node that computes it.
        self._size_nodes: dict[Any, torch.fx.Node] = {}

    def program(self) -> ExportedProgram:
        raw = self._raw
        signature = raw.graph_signature
        if any(spec.kind not in _INPUT_KINDS for spec in signature.input_specs):
            raise _RetraceNeeded
        if any(spec.kind != OutputKind.USER_OUTPUT for spec in signature.output_specs):
            raise _RetraceNeeded
        # copy the graph
        for node in raw.graph.nodes:
            if node.op == "placeholder":
                self._copy_node(node)
            elif node.op == "call_function":
                self._copy_call(node)
            elif node.op == "output":
                self._graph.output(self._copy_arguments(node.args[0]))
            else:
                raise _RetraceNeeded
        self._graph.eliminate_dead_code()
        # write the new names of the nodes into the signature
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
                    raise _RetraceNeeded
                spec = replace(spec, arg=TensorArgument(name=value.name))
            elif isinstance(value, torch.fx.Node):
                raise _RetraceNeeded
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

    def _copy_arguments(self, value: Any) -> Any:
        return torch.fx.node.map_arg(value, lambda node: self._copies[node])

    def _copy_node(self, node: torch.fx.Node) -> None:
        if isinstance(node.meta.get("val"), torch.Tensor) and _has_undecided_strides(node.meta["val"]):
            raise _RetraceNeeded
        copy = self._copies[node] = self._graph.node_copy(node, lambda old: self._copies[old])
        self._remember_size(copy)

    def _remember_size(self, node: torch.fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, _SYMBOLIC_TYPES):
            self._size_nodes.setdefault(value.node.expr, node)

    def _copy_call(self, node: torch.fx.Node) -> None:
        target = node.target
        if target is operator.getitem and isinstance(self._copies[node.args[0]], list | tuple):
            self._copies[node] = self._copies[node.args[0]][node.args[1]]
            return
        if target is _aten._assert_tensor_metadata.default:
            self._copy_assertion(node)
            return
        if isinstance(target, torch._ops.OperatorBase):
            _require_pure_operator(target)
        if "val" not in node.meta:
            raise _RetraceNeeded
        if is_composite(target):
            self._copies[node] = self._copy_parts(node)
        else:
            self._copy_node(node)

    def _copy_assertion(self, node: torch.fx.Node) -> None:
        """Copy an assertion about a tensor as a retrace writes it: with arguments by position where possible."""
        arguments = {
            **dict(zip((a.name for a in node.target._schema.arguments), node.args, strict=False)),
            **node.kwargs,
        }
        positional = [a.name for a in node.target._schema.arguments if not a.kwarg_only]
        while arguments.get(positional[-1]) is None:
            positional.pop()
        args = tuple(self._copy_arguments(arguments.pop(name, None)) for name in positional)
        kwargs = {name: self._copy_arguments(value) for name, value in arguments.items() if value is not None}
        self._copies[node] = copied = self._graph.call_function(node.target, args, kwargs)
        copied.meta = dict(node.meta)

    def _copy_parts(self, node: torch.fx.Node) -> Any:
        """Copy a composite operator as its parts (rule 2). Returns the copy of its result."""
        nodes_by_tensor_id: dict[int, torch.fx.Node] = {}

        def value_of(argument: torch.fx.Node) -> Any:
            value, copy = argument.meta["val"], self._copies[argument]
            if isinstance(value, torch.Tensor) and nodes_by_tensor_id.setdefault(id(value), copy) is not copy:
                raise _RetraceNeeded  # the recorded calls do not show which of the two nodes they read
            return value

        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), value_of)
        recorder = _CallRecorder()
        with recorder, torch.no_grad():
            result = node.target.decompose(*args, **kwargs)
        if result is NotImplemented:
            raise _RetraceNeeded
        for function, call_args, call_kwargs, output in recorder.calls:
            new_args, new_kwargs = pytree.tree_map(
                lambda leaf: self._copy_operand(leaf, nodes_by_tensor_id), (call_args, call_kwargs)
            )
            call = self._new_call(function, new_args, new_kwargs, node, output)
            if isinstance(output, torch.Tensor):
                nodes_by_tensor_id[id(output)] = call
                continue
            for index, item in enumerate(output):
                nodes_by_tensor_id[id(item)] = self._new_call(operator.getitem, (call, index), {}, node, item)
        return pytree.tree_map(lambda leaf: self._copy_operand(leaf, nodes_by_tensor_id), result)

    def _copy_operand(self, leaf: Any, nodes_by_tensor_id: Mapping[int, torch.fx.Node]) -> Any:
        if isinstance(leaf, torch.Tensor):
            if id(leaf) not in nodes_by_tensor_id:
                raise _RetraceNeeded
            return nodes_by_tensor_id[id(leaf)]
        if isinstance(leaf, _SYMBOLIC_TYPES):
            return self._size_node(leaf)
        return leaf

    def _size_node(self, size: Any) -> torch.fx.Node:
        """The node that computes a size. If necessary, a node is added that reads the size from an axis of an input."""
        expression = size.node.expr
        if expression not in self._size_nodes:
            axes = (
                (node, axis, length)
                for node in self._graph.find_nodes(op="placeholder")
                for axis, length in enumerate(getattr(node.meta["val"], "shape", ()))
            )
            for node, axis, length in axes:
                if isinstance(length, torch.SymInt) and length.node.expr == expression:
                    with self._graph.inserting_after(self._last_input_node()):
                        new_node = self._graph.call_function(_aten.sym_size.int, (node, axis))
                    new_node.meta = {"val": length, "nn_module_stack": {_NO_MODULE: (_NO_MODULE, _NO_MODULE)}}
                    self._remember_size(new_node)
                    break
            else:
                raise _RetraceNeeded
        return self._size_nodes[expression]

    def _last_input_node(self) -> torch.fx.Node:
        """The last of the inputs and sizes of inputs with which a retraced graph begins."""
        nodes = itertools.takewhile(_is_input_or_size, self._graph.nodes)
        return deque(nodes, maxlen=1).pop()

    def _new_call(
        self, target: Callable[..., Any], args: Any, kwargs: Any, origin: torch.fx.Node, value: Any
    ) -> torch.fx.Node:
        new_node = self._graph.call_function(target, args, kwargs)
        new_node.meta = {**origin.meta, "val": value}
        return new_node


class _CallRecorder(TorchDispatchMode):
    """Records the calls of operators that are not composite."""

    def __init__(self) -> None:
        super().__init__()
        #: (operator, args, kwargs, result) of each call.
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function.namespace == "prim":  # reads the device of a tensor
            return function(*args, **kwargs)
        if is_composite(function):
            with self:  # a mode is off inside its own handler: record the calls of the parts, too
                result = function.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        _require_pure_operator(function)
        result = function(*args, **kwargs)
        leaves = [result] if isinstance(result, torch.Tensor) else result
        if not isinstance(leaves, list | tuple) or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            raise _RetraceNeeded
        self.calls.append((function, args, kwargs, result))
        return result


def _has_undecided_strides(tensor: torch.Tensor) -> bool:
    """Whether a stride is the minimum or maximum of two expressions. A retrace would choose one of the two."""
    return any(isinstance(stride, torch.SymInt) and stride.node.expr.has(Min, Max) for stride in tensor.stride())


def _is_input_or_size(node: torch.fx.Node) -> bool:
    return node.op == "placeholder" or node.target is _aten.sym_size.int


def _require_pure_operator(target: Any) -> None:
    """Raise `_RetraceNeeded` for an operator with which the program needs a retrace (rule 1)."""
    if not isinstance(target, torch._ops.OpOverload):
        raise _RetraceNeeded
    if target._schema.is_mutable or not target._schema.returns or target.overloadpacket in _RETRACED_OPERATORS:
        raise _RetraceNeeded
