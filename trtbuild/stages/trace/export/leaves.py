"""The leaves of a module's result: tensors, numbers and constants. Numbers become 0-d tensors of the program.

A number is a size, a number that is computed from sizes, or a number that was read from a tensor (``item``).

Rules
1. The element type holds every value of the number exactly (`NUMBER_TYPES`). So the number that a package returns is the
   one that the model returns.
2. A number that is returned twice is one output.
3. The new nodes are in no module, like the nodes that compute sizes. They name their device, as export does, so a
   program that is moved to a GPU computes them there.
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

_TYPES: Mapping[type, str] = {SymIntArgument: "int", SymFloatArgument: "float", SymBoolArgument: "bool"}
#: The kinds of leaves that a program may return.
KNOWN = (TensorArgument, ConstantArgument, *_TYPES)
#: Operators that read a number from a tensor.
_READS = frozenset((torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default))


@dataclass(frozen=True)
class TensorLeaf:
    """A tensor."""


@dataclass(frozen=True)
class NumberLeaf:
    """A number of the Python type `type`. `read_from` is the type of the tensor that it was read from, the least exact
    one if there are several; None for a number that is not read from a tensor of floats."""

    type: str
    read_from: torch.dtype | None

    @property
    def dtype(self) -> torch.dtype:
        """The element type of its tensor."""
        return dtype_of(NUMBER_TYPES[self.type])


@dataclass(frozen=True)
class ConstantLeaf:
    """A value that export took from the example call."""

    value: Any


Leaf: TypeAlias = "TensorLeaf | NumberLeaf | ConstantLeaf"


def leaves_of(exported: ExportedProgram) -> list[Leaf]:
    """The leaves of the result of a functionalized program, in order."""
    (output,) = exported.graph.find_nodes(op="output")
    nodes = {node.name: node for node in output.all_input_nodes}
    leaves: list[Leaf] = []
    for spec in _user_outputs(exported):
        if isinstance(spec.arg, ConstantArgument):
            leaves.append(ConstantLeaf(spec.arg.value))
        elif type(spec.arg) in _TYPES:
            leaves.append(NumberLeaf(_TYPES[type(spec.arg)], _read_from(nodes[spec.arg.name])))
        else:
            leaves.append(TensorLeaf())
    return leaves


def numbers_as_tensors(exported: ExportedProgram) -> ExportedProgram:
    """Return the program with a 0-d tensor for each number that it returns; `exported` itself if it returns none.

    The graph of `exported` changes, too.
    """
    types = {spec.arg.name: _TYPES[type(spec.arg)] for spec in _user_outputs(exported) if type(spec.arg) in _TYPES}
    if not types:
        return exported
    (output,) = exported.graph.find_nodes(op="output")
    tensors: dict[str, torch.fx.Node] = {}
    for node in output.all_input_nodes:
        if node.name in types:
            with exported.graph.inserting_before(output):
                tensors[node.name] = _tensor_of(node, dtype_of(NUMBER_TYPES[types[node.name]]))
    output.args = torch.fx.node.map_arg(output.args, lambda node: tensors.get(node.name, node))
    specs = [
        replace(spec, arg=TensorArgument(name=tensors[spec.arg.name].name)) if type(spec.arg) in _TYPES else spec
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


def _tensor_of(number: torch.fx.Node, dtype: torch.dtype) -> torch.fx.Node:
    value = number.meta["val"]
    options = {"dtype": dtype, "device": torch.device("cpu")}
    scalar = number.graph.call_function(torch.ops.aten.scalar_tensor.default, (number,), options)
    fakes = next(
        node.meta["val"].fake_mode
        for node in number.graph.find_nodes(op="placeholder")
        if isinstance(node.meta.get("val"), torch._subclasses.FakeTensor)
    )
    with fakes:
        scalar.meta = {"val": torch.ops.aten.scalar_tensor.default(value, **options)}
    return scalar


def _read_from(number: torch.fx.Node) -> torch.dtype | None:
    """The least exact floating type of the tensors that a number was read from; None if there is no such tensor."""
    dtypes: list[torch.dtype] = []
    seen = {number}
    waiting = [number]
    while waiting:
        node = waiting.pop()
        if node.target in _READS:
            dtypes += [source.meta["val"].dtype for source in node.all_input_nodes]
        elif not isinstance(node.meta.get("val"), torch.Tensor):
            waiting += [source for source in node.all_input_nodes if source not in seen]
            seen.update(node.all_input_nodes)
    floating = [dtype for dtype in dtypes if dtype.is_floating_point]
    return max(floating, key=lambda dtype: torch.finfo(dtype).eps, default=None)
