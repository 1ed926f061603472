"""Put the calls of operators from outside PyTorch back into a lowered program.

`trtbuild.stages.program.custom_calls` has removed the calls. Its rules 2 to 5 apply here.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument

from trtbuild.errors import ConversionRefused
from trtbuild.stages.program.custom_operators import overload_name
from trtbuild.stages.program.functional import Program, assemble
from trtbuild.stages.program.size_checks import insert_size_checks
from trtbuild.stages.program.size_nodes import SizeNodes
from trtbuild.stages.program.symbols import Symbols


@dataclass(frozen=True)
class OutputArgument:
    """An argument of a call: output `number` of the program without the calls. `is_contiguous` is whether the tensor was
    contiguous in the traced program (rule 4)."""

    number: int
    is_contiguous: bool


@dataclass(frozen=True)
class PlaceholderArgument:
    """An argument of a call: an input, a weight or a constant of the program, or the result of another call."""

    name: str


@dataclass(frozen=True)
class SizeArgument:
    """An argument of a call: a number that follows from sizes (rule 3), an int or a SymInt."""

    value: Any


@dataclass(frozen=True)
class RemovedCall:
    """A call that was removed. `node` is the call in the traced program.

    An input replaces each result that the traced program reads. `results` maps the name of this input to the index of the
    result, and to the node of the result in the traced program. The index is None if the call returns one tensor."""

    node: torch.fx.Node
    args: Any
    kwargs: Any
    results: dict[str, tuple[int | None, torch.fx.Node]]


def close_calls(calls: Sequence[RemovedCall], output_count: int, lowered: Program) -> Program:
    """Put `calls` back into `lowered`. Only its first `output_count` outputs stay. Raises ConversionRefused (rule 3)."""
    return _Closing(calls, output_count, lowered).close()


class _Closing:
    def __init__(self, calls: Sequence[RemovedCall], output_count: int, lowered: Program) -> None:
        self._output_count = output_count
        self._lowered = lowered
        self._graph = torch.fx.Graph()
        #: Node of the lowered program → its copy. For an input that replaced a result of a call: this result.
        self._copies: dict[torch.fx.Node, torch.fx.Node] = {}
        self._calls_by_result = {name: call for call in calls for name in call.results}
        self._placeholders = {node.name: node for node in lowered.placeholders}
        for node in lowered.placeholders:
            if node.name not in self._calls_by_result:
                self._copy(node)
        inputs = [self._copies[node] for node in lowered.input_nodes if node in self._copies]
        self._sizes = SizeNodes(self._graph, inputs, Symbols(lowered))

    def close(self) -> Program:
        lowered, signature = self._lowered, self._lowered.exported.graph_signature
        inputs = [spec for spec in signature.input_specs if spec.arg.name not in self._calls_by_result]
        for node in lowered.graph.nodes:
            if node.op not in ("placeholder", "output"):
                self._add(node)
        results = [self._add(node) for node in lowered.output_nodes[: self._output_count]]
        self._graph.output(tuple(results))
        self._graph.eliminate_dead_code()
        outputs = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in results]
        module = torch.fx.GraphModule(lowered.exported.graph_module, self._graph)
        closed = assemble(module, inputs, outputs, lowered.exported.range_constraints, lowered.exported.constants)
        program = Program(closed, lowered.weights)
        insert_size_checks(program)
        return program

    def _add(self, node: torch.fx.Node) -> torch.fx.Node:
        """Return the copy of a node. If there is no copy yet, add it after all nodes that it needs (rule 2)."""
        waiting = [node]
        while waiting:
            current = waiting[-1]
            missing = [needed for needed in self._needed_nodes(current) if needed not in self._copies]
            if current not in self._copies and missing:
                waiting += missing
                continue
            waiting.pop()
            if current in self._copies:
                continue
            if current.op == "placeholder":
                self._add_call(self._calls_by_result[current.name])
            else:
                self._copy(current)
        return self._copies[node]

    def _needed_nodes(self, node: torch.fx.Node) -> list[torch.fx.Node]:
        """The nodes that must be copied before a node. An input that replaced a result of a call needs the arguments of
        this call."""
        if node.op != "placeholder" or node in self._copies:
            return list(node.all_input_nodes)
        call = self._calls_by_result[node.name]
        return [source for leaf in pytree.tree_leaves((call.args, call.kwargs)) for source in self._sources(leaf)]

    def _sources(self, leaf: Any) -> list[torch.fx.Node]:
        if isinstance(leaf, OutputArgument):
            return [self._lowered.output_nodes[leaf.number]]
        return [self._placeholders[leaf.name]] if isinstance(leaf, PlaceholderArgument) else []

    def _copy(self, node: torch.fx.Node) -> None:
        self._copies[node] = copy = self._graph.node_copy(node, self._copies.__getitem__)
        copy.meta = dict(node.meta)
        if node.op != "placeholder":
            self._sizes.add_tensor(copy)

    def _add_call(self, call: RemovedCall) -> None:
        args, kwargs = pytree.tree_map(lambda leaf: self._argument(leaf, call), (call.args, call.kwargs))
        node = self._graph.call_function(call.node.target, args, kwargs)
        node.meta = dict(call.node.meta)
        for name, (index, traced_result) in call.results.items():
            result = node
            if index is not None:
                result = self._graph.call_function(operator.getitem, (node, index))
                result.meta = dict(traced_result.meta)
            self._copies[self._placeholders[name]] = result
            self._sizes.add_tensor(result)

    def _argument(self, leaf: Any, call: RemovedCall) -> Any:
        if isinstance(leaf, SizeArgument):
            size = self._sizes.size(leaf.value)
            if size is None:
                raise ConversionRefused(
                    f"the operator {overload_name(call.node.target)} reads a number that depends on data",
                    hint="pass a tensor instead of the number",
                )
            return size
        sources = self._sources(leaf)
        if not sources:
            return leaf
        copy = self._copies[sources[0]]
        if not (isinstance(leaf, OutputArgument) and leaf.is_contiguous):
            return copy
        contiguous = self._graph.call_function(torch.ops.aten.contiguous.default, (copy,))
        value = copy.meta["val"]
        with value.fake_mode:
            contiguous.meta = {**call.node.meta, "val": value.contiguous()}
        return contiguous
