"""The leaves of a module's result: its tensors, numbers and constants, without the structure of tuples and dicts.

A number is a size, is computed from sizes, or was read from a tensor (``item``). The program returns a number as a 0-d
tensor.

Rules
1. The element type of this tensor represents every value of the number exactly (`NUMBER_TYPES`). So a package returns the
   same number as the model.
2. A number that is returned twice is one output.
3. The nodes that make these tensors belong to no module, like the nodes that compute sizes. Each of these nodes has its
   device as an argument. So a program that is moved to a GPU makes the tensors there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)

from trtbuild.core.values.numbers import NUMBER_TYPES
from trtbuild.stages.trace.examples import dtype_of

_NUMBER_ARGUMENTS: Mapping[type, str] = {SymIntArgument: "int", SymFloatArgument: "float", SymBoolArgument: "bool"}
#: torch.export's classes for the values that a program may return.
RETURNED_ARGUMENTS = (TensorArgument, ConstantArgument, *_NUMBER_ARGUMENTS)
#: Operators that read a number from a tensor.
_READ_OPERATORS = frozenset((torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default))


@dataclass(frozen=True)
class TensorLeaf:
    """A tensor."""


@dataclass(frozen=True)
class NumberLeaf:
    """A number of the Python type `type`. `source_dtype` is the least exact dtype of the float tensors from which the
    number was read; None without such a tensor."""

    type: str
    source_dtype: torch.dtype | None

    @property
    def dtype(self) -> torch.dtype:
        """The element type of the number's tensor."""
        return dtype_of(NUMBER_TYPES[self.type])


@dataclass(frozen=True)
class ConstantLeaf:
    """A constant, with its value in the example call."""

    value: Any


Leaf: TypeAlias = "TensorLeaf | NumberLeaf | ConstantLeaf"


def leaves_of(exported: ExportedProgram) -> list[Leaf]:
    """The leaves of a program's result, in order."""
    (output,) = exported.graph.find_nodes(op="output")
    nodes = {node.name: node for node in output.all_input_nodes}
    leaves: list[Leaf] = []
    for spec in _user_outputs(exported):
        if isinstance(spec.arg, ConstantArgument):
            leaves.append(ConstantLeaf(spec.arg.value))
        elif type(spec.arg) in _NUMBER_ARGUMENTS:
            leaves.append(NumberLeaf(_NUMBER_ARGUMENTS[type(spec.arg)], _source_dtype(nodes[spec.arg.name])))
        else:
            leaves.append(TensorLeaf())
    return leaves


def numbers_as_tensors(exported: ExportedProgram) -> ExportedProgram:
    """Replace each number that a program returns by a 0-d tensor. The graph of `exported` is changed, and the result has
    the new signature."""
    types = {
        spec.arg.name: _NUMBER_ARGUMENTS[type(spec.arg)]
        for spec in _user_outputs(exported)
        if type(spec.arg) in _NUMBER_ARGUMENTS
    }
    if not types:
        return exported
    (output,) = exported.graph.find_nodes(op="output")
    tensors: dict[str, torch.fx.Node] = {}
    for node in output.all_input_nodes:
        if node.name in types:
            with exported.graph.inserting_before(output):
                tensors[node.name] = _add_tensor_of(node, dtype_of(NUMBER_TYPES[types[node.name]]))
    output.args = torch.fx.node.map_arg(output.args, lambda node: tensors.get(node.name, node))
    specs = [
        replace(spec, arg=TensorArgument(name=tensors[spec.arg.name].name))
        if type(spec.arg) in _NUMBER_ARGUMENTS
        else spec
        for spec in exported.graph_signature.output_specs
    ]
    exported.graph_module.recompile()
    return ExportedProgram(
        root=exported.graph_module,
        graph=exported.graph,
        graph_signature=ExportGraphSignature(list(exported.graph_signature.input_specs), specs),
        state_dict=exported.state_dict,
        range_constraints=exported.range_constraints,
        module_call_graph=exported.module_call_graph,
        example_inputs=None,
        constants=exported.constants,
    )


def _user_outputs(exported: ExportedProgram) -> list[OutputSpec]:
    return [spec for spec in exported.graph_signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]


def _add_tensor_of(number: torch.fx.Node, dtype: torch.dtype) -> torch.fx.Node:
    """Add a node that makes a 0-d tensor of a number (rule 3)."""
    value = number.meta["val"]
    options = {"dtype": dtype, "device": torch.device("cpu")}
    scalar = number.graph.call_function(torch.ops.aten.scalar_tensor.default, (number,), options)
    fake_mode = next(
        node.meta["val"].fake_mode
        for node in number.graph.find_nodes(op="placeholder")
        if isinstance(node.meta.get("val"), torch._subclasses.FakeTensor)
    )
    with fake_mode:
        scalar.meta = {"val": torch.ops.aten.scalar_tensor.default(value, **options)}
    return scalar


def _source_dtype(number: torch.fx.Node) -> torch.dtype | None:
    """`NumberLeaf.source_dtype` of the number that a node computes."""
    dtypes: list[torch.dtype] = []
    visited_nodes = {number}
    nodes_to_visit = [number]
    while nodes_to_visit:
        node = nodes_to_visit.pop()
        if node.target in _READ_OPERATORS:
            dtypes += [source.meta["val"].dtype for source in node.all_input_nodes]
        elif not isinstance(node.meta.get("val"), torch.Tensor):
            nodes_to_visit += [source for source in node.all_input_nodes if source not in visited_nodes]
            visited_nodes.update(node.all_input_nodes)
    floating = [dtype for dtype in dtypes if dtype.is_floating_point]
    return max(floating, key=lambda dtype: torch.finfo(dtype).eps, default=None)
