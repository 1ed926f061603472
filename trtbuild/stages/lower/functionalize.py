"""Functionalization and decomposition, in one retrace, back in functional form.

Rules
1. One call of ``run_decompositions`` (it retraces the program: 1 s and more). Operators that are not in the table stay
   whole: linear, layer_norm, scaled_dot_product_attention and gelu convert better as they are.
2. Placeholders keep their order and names; the retrace names them arg_0, arg_1, …
3. A node that the retrace put under no module takes its module from its neighbours; sizes belong to none.
4. A mutation that shows only now is the model's fault: SourceError, code ``mutated-input``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputSpec, OutputKind, OutputSpec, TensorArgument

from trtbuild.errors import SourceError
from trtbuild.stages.lower.modules import adopt_orphans
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program, assemble

_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, OutputKind.PARAMETER_MUTATION)


def functionalize(program: Program, request: Request) -> Program:
    """`program` without in-place operators and with the decompositions of `request` applied."""
    names = [node.name for node in program.placeholders]
    exported = program.exported.run_decompositions(dict(request.decompositions))
    _refuse_mutations(exported, names)
    _rename_placeholders(exported, names)
    adopt_orphans(exported.graph_module)
    signature = exported.graph_signature
    inputs = [
        InputSpec(kind=spec.kind, arg=_renamed(spec.arg, node), target=spec.target, persistent=spec.persistent)
        for spec, node in zip(signature.input_specs, _placeholders(exported), strict=True)
    ]
    outputs = [
        OutputSpec(kind=OutputKind.USER_OUTPUT, arg=_renamed(spec.arg, node), target=None)
        for spec, node in zip(signature.output_specs, exported.graph.output_node().args[0], strict=True)
    ]
    functional = assemble(exported.graph_module, inputs, outputs, exported.range_constraints, exported.constants)
    return Program(functional, program.weights)


def _placeholders(exported: ExportedProgram) -> list[torch.fx.Node]:
    return [node for node in exported.graph.nodes if node.op == "placeholder"]


def _renamed(argument: Any, node: torch.fx.Node) -> Any:
    return TensorArgument(name=node.name) if isinstance(argument, TensorArgument) else type(argument)(name=node.name)


def _rename_placeholders(exported: ExportedProgram, names: list[str]) -> None:
    for node, name in zip(_placeholders(exported), names, strict=True):
        node._rename(name)  # takes a suffix where a call already has the name
        node.target = node.name


def _refuse_mutations(exported: ExportedProgram, names: list[str]) -> None:
    order = [spec.arg.name for spec in exported.graph_signature.input_specs]
    for spec in exported.graph_signature.output_specs:
        if spec.kind in _MUTATIONS:
            name = names[order.index(spec.target)] if spec.target in order else str(spec.target)
            raise SourceError(
                f"the model writes to its input {name!r}",
                code="mutated-input",
                hint="write to a copy: `x = x.clone()` before the in-place operation",
            )
