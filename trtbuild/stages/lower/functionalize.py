"""Functionalize and decompose a program in one retrace (``ExportedProgram.run_decompositions``).

Rules
1. A retrace takes 1 s and more, so it runs only if it may change the program. Traced programs are functional already,
   and most have nothing to decompose. The retrace decomposes the operators in `Request.decompositions`, and composite
   operators that PyTorch cannot preserve. Some decompositions are trtbuild's own (`operators.decompositions`).
2. Placeholders keep their order, and their names if no call has the same name. (The retrace puts constants first and names
   the inputs arg_0, arg_1, …)
3. A tensor node that the retrace left without a module gets the module of its neighbours.
4. If the retrace shows that the model writes to an input, SourceError is raised, with the code ``mutated-input``.
5. An operator stays whole if its decomposition fits the sizes of the example only (`size_questions`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch._export.utils import _is_cia_op, _is_preservable_cia_op
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument

from trtbuild.errors import ConversionRefused, SourceError
from trtbuild.stages.lower.modules import set_missing_modules
from trtbuild.stages.lower.operators.decompositions import DECOMPOSITIONS, POOLING_DECOMPOSITIONS
from trtbuild.stages.lower.operators.quantization import is_quantizer, quantizers
from trtbuild.stages.lower.request import Request
from trtbuild.stages.lower.size_questions import SizeQuestions
from trtbuild.stages.program.functional import Program, assemble
from trtbuild.stages.program.text import target_name

_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, OutputKind.PARAMETER_MUTATION)


def functionalize(program: Program, request: Request) -> Program:
    request = _add_decompositions(program, request)
    if needs_no_retrace(program, request):
        return _copy(program)
    placeholders = [
        (spec, node.name) for spec, node in zip(_input_specs(program.exported), program.placeholders, strict=True)
    ]
    exported = _decompose(program, request)
    _refuse_mutations(exported, [name for spec, name in placeholders if spec.kind == InputKind.USER_INPUT])
    inputs = _restore_placeholders(exported, placeholders, program.weights)
    set_missing_modules(exported.graph_module)
    outputs = [
        OutputSpec(kind=OutputKind.USER_OUTPUT, arg=TensorArgument(name=node.name), target=None)
        for node in exported.graph.output_node().args[0]
    ]
    assembled = assemble(exported.graph_module, inputs, outputs, exported.range_constraints, exported.constants)
    return Program(assembled, program.weights)


def _add_decompositions(program: Program, request: Request) -> Request:
    """Return `request` with trtbuild's own decompositions.

    Those of pooling are added only if the program pools dynamic axes: there, PyTorch's decompositions are right only at the
    sizes of the example. Those of quantizers are added only if the program has quantizers.
    """
    has_pooling = any(
        node.target in POOLING_DECOMPOSITIONS and _pools_dynamic_axes(node) for node in program.graph.nodes
    )
    table = {
        **request.decompositions,
        **DECOMPOSITIONS,
        **(POOLING_DECOMPOSITIONS if has_pooling else {}),
    }
    if any(is_quantizer(node.target) for node in program.graph.nodes):
        table.update(quantizers())
    return replace(request, decompositions=table)


def _pools_dynamic_axes(node: torch.fx.Node) -> bool:
    cell_counts = node.args[1]
    sizes = node.all_input_nodes[0].meta["val"].shape
    pooled_sizes = sizes[len(sizes) - len(cell_counts) :]
    return any(
        isinstance(size, torch.SymInt) and count != 1 for size, count in zip(pooled_sizes, cell_counts, strict=True)
    )


def _decompose(program: Program, request: Request) -> ExportedProgram:
    """Retrace `program`, and repeat this without the decompositions of rule 5."""
    table = dict(request.decompositions)
    while True:
        questions = SizeQuestions(program)
        with questions.record():
            exported = _retrace(program, questions.watch(table))
        if not questions.operators:
            return exported
        table = {target: function for target, function in table.items() if target not in questions.operators}


def _retrace(program: Program, decompositions: dict[Any, Callable[..., Any]]) -> ExportedProgram:
    try:
        exported = program.exported.run_decompositions(decompositions)
    except Exception as error:  # a decomposition may raise any error
        reason = (str(error).strip().splitlines() or [""])[0]
        raise ConversionRefused(
            f"PyTorch cannot decompose the traced model: {type(error).__name__}: {reason}",
            hint="write that operator in another way, or try another release of PyTorch",
        ) from error
    effects = [node for node in exported.graph.nodes if node.target is torch.ops.higher_order.with_effects]
    if effects:
        names = ", ".join(sorted({target_name(node.args[1]) for node in effects}))
        raise ConversionRefused(
            f"the decomposition of an operator has a side effect: {names}",
            hint="write the operator in another way: engines have no side effects",
        )
    return exported


def needs_no_retrace(program: Program, request: Request) -> bool:
    """Whether `program` has no nested graphs, changes no tensor in place, and has no operators to decompose."""
    for node in program.graph.nodes:
        if node.op == "get_attr":
            return False  # a nested graph
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OperatorBase):
            continue
        if not isinstance(node.target, torch._ops.OpOverload) or node.target in request.decompositions:
            return False
        if node.target._schema.is_mutable or (_is_cia_op(node.target) and not _is_preservable_cia_op(node.target)):
            return False
    return True


def _copy(program: Program) -> Program:
    old = program.exported
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    returned = graph.graph_copy(program.graph, copies)
    graph.output(returned)
    module = torch.fx.GraphModule({}, graph)
    set_missing_modules(module)
    names = {node.name: TensorArgument(name=copied.name) for node, copied in copies.items()}
    inputs = [replace(spec, arg=names[spec.arg.name]) for spec in old.graph_signature.input_specs]
    outputs = [replace(spec, arg=names[spec.arg.name]) for spec in old.graph_signature.output_specs]
    return Program(assemble(module, inputs, outputs, old.range_constraints, old.constants), program.weights)


def _input_specs(exported: ExportedProgram) -> list[InputSpec]:
    """The input specs in the order of the placeholders."""
    specs_by_name = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
    return [specs_by_name[node.name] for node in exported.graph.nodes if node.op == "placeholder"]


def _restore_placeholders(
    exported: ExportedProgram, placeholders: list[tuple[InputSpec, str]], weights: int
) -> list[InputSpec]:
    """Give the placeholders their old order and names. Returns the specs in this order.

    `placeholders` are the specs and names before the retrace. The first `weights` of them are weights. Constants that the
    retrace created come after the weights and the old constants, before the inputs. (With torch 2.13,
    ``run_decompositions`` fails if a decomposition creates a constant.)
    """
    pairs = list(zip(_input_specs(exported), exported.graph.find_nodes(op="placeholder"), strict=True))
    user_inputs = iter([pair for pair in pairs if pair[0].kind == InputKind.USER_INPUT])
    constants = {spec.target: (spec, node) for spec, node in pairs if spec.kind != InputKind.USER_INPUT}
    old_placeholders = [
        (*(next(user_inputs) if spec.kind == InputKind.USER_INPUT else constants.pop(spec.target)), name)
        for spec, name in placeholders
    ]
    new_constants = [(spec, node, node.name) for spec, node in constants.values()]
    # without old constants, the new ones follow the weights (the kind of a weight is USER_INPUT)
    constants_end = max(
        (position + 1 for position, (spec, _) in enumerate(placeholders) if spec.kind != InputKind.USER_INPUT),
        default=weights,
    )
    restored: list[InputSpec] = []
    previous = exported.graph._root
    for spec, node, name in [*old_placeholders[:constants_end], *new_constants, *old_placeholders[constants_end:]]:
        previous.append(node)  # moves `node` behind `previous`
        previous = node
        node._rename(name)  # adds a suffix if a call has the name already
        node.target = node.name
        argument = TensorArgument(name=node.name)
        restored.append(InputSpec(kind=spec.kind, arg=argument, target=spec.target, persistent=spec.persistent))
    return restored


def _refuse_mutations(exported: ExportedProgram, names: list[str]) -> None:
    """Raise SourceError if the model writes to an input. `names` are the names of the inputs before the retrace."""
    specs = exported.graph_signature.input_specs
    retraced_names = [spec.arg.name for spec in specs if spec.kind == InputKind.USER_INPUT]
    for spec in exported.graph_signature.output_specs:
        if spec.kind in _MUTATIONS:
            name = names[retraced_names.index(spec.target)] if spec.target in retraced_names else str(spec.target)
            raise SourceError(
                f"the model writes to its input {name!r}",
                code="mutated-input",
                hint="write to a copy: `x = x.clone()` before the in-place operation",
            )
