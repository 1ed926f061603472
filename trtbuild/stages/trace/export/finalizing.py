"""Bring a traced program into its final form: no duplicate weights, and the manifest's ranges and input order.

Rules
1. Each weight has one placeholder. Weights and constants that are not used are removed.
2. The other inputs are in the manifest's order. So symbol number n of the program is symbol number n of the shape plan.
3. The size of an axis that the manifest declares dynamic is exactly ``multiple_of × symbol``. The size of a static axis is
   the declared number. If torch.export gives an axis another size, the model is rejected.
4. The symbols of the inputs have the manifest's ranges. torch's ranges may be smaller: torch leaves out size 1 of a dim
   that is a multiple of another, and sizes that its guards exclude. `proof` tries the sizes that torch left out.
5. A tensor that the module returns twice is one output of the program.
6. Slices replace some splits along dynamic axes (`pieces`).
7. A number that the module returns is a 0-d tensor (`leaves`).
8. Without a weights file, the zero points of quantizers become numbers of the program (`zero_points`), and quantized
   weights are stored in the types to which they are quantized (`stored_weights`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument
from torch.utils._sympy.value_ranges import ValueRanges

from trtbuild.core.model.shapes import SymbolAxis
from trtbuild.core.values.expressions import Expression
from trtbuild.errors import SourceError
from trtbuild.stages.program.functional import Program, assemble, functional
from trtbuild.stages.program.symbols import Symbols
from trtbuild.stages.trace.examples import dtype_name, dtype_of
from trtbuild.stages.trace.export.constraints import describe_symbol, hint_to_make_static
from trtbuild.stages.trace.export.leaves import Leaf, leaves_of, numbers_as_tensors
from trtbuild.stages.trace.export.pieces import slice_used_pieces
from trtbuild.stages.trace.export.weights import ModuleWeights, Weight
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.quantization.scales import refuse_scales
from trtbuild.stages.trace.quantization.stored_weights import StoredWeight, store_weights
from trtbuild.stages.trace.quantization.weight_limits import widen_weight_limits
from trtbuild.stages.trace.quantization.zero_points import write_zero_points


@dataclass
class FinalProgram:
    """A program in its final form.

    `weights` are the weights that the program takes as inputs, in order. `module_weights` are all weights of the module.
    `leaves` are the values of the module's result, without the structure of tuples and dicts. For each leaf that is not a
    constant, `outputs` has the index of its output in the program. `structure` has the tuples and dicts of the result, if
    it is known.
    """

    program: Program
    weights: list[Weight]
    outputs: list[int]
    module_weights: ModuleWeights
    leaves: list[Leaf]
    structure: pytree.TreeSpec | None = None


def finalize_program(exported: ExportedProgram, weights: ModuleWeights, job: TraceJob) -> FinalProgram:
    """Bring a program without in-place writes into its final form. Raises SourceError, for example under rule 3."""
    # read what `functional` does not keep: the leaves, the values, the order of inputs, the targets of the placeholders
    leaves, structure = leaves_of(exported), exported.call_spec.out_spec
    exported = numbers_as_tensors(exported)
    values = _tensors_by_name(exported)
    order = _manifest_order(exported, job)
    targets = {spec.arg.name: spec.target for spec in exported.graph_signature.input_specs}
    program, _ = functional(exported)
    graph = program.graph
    slice_used_pieces(graph)
    weight_nodes = program.weight_nodes
    constant_nodes = [node for node in program.placeholders if node.name in program.constants]
    inputs = [program.input_nodes[position] for position in order]
    # check the scales of quantizers, and rewrite quantizers (rule 8). PyTorch limits quantized weights to -127..127.
    # `widen_weight_limits` writes TensorRT's limits, -128..127, where this changes no value
    stored: list[StoredWeight] = []
    if job.weights is None:
        names = {node: str(targets[node.name]) for node in program.placeholders}
        known = {node: values[name] for node, name in names.items() if name in values}
        refuse_scales(graph, known, job)
        write_zero_points(graph, known)
        widen_weight_limits(graph, known)
        stored = store_weights(graph, known, names, lambda module: _two_levels_error(module, job))
    # keep one placeholder for each used weight (rule 1)
    specs_by_name = {spec.arg.name: spec for spec in program.exported.graph_signature.input_specs}
    named_values = {node: (str(targets[node.name]), values[str(targets[node.name])]) for node in weight_nodes}
    constant_values = {node: values[str(targets[node.name])] for node in constant_nodes}
    used_weights, constants = _merge_weights(named_values, constant_values, weights, job)
    used_weights += [(weight.node, Weight((weight.name,), (), weight.value)) for weight in stored]
    used_weights = [(node, weight) for node, weight in used_weights if node.users]
    constants = [node for node in constants if node.users]
    # write the final order of placeholders and outputs (rules 2 and 5)
    placeholders = [*(node for node, _ in used_weights), *constants, *inputs]
    for node in program.placeholders:
        if node not in placeholders:
            graph.erase_node(node)
    first_other_node = next(node for node in graph.nodes if node.op != "placeholder")
    for node in placeholders:
        first_other_node.prepend(node)
    (output,) = (node for node in graph.nodes if node.op == "output")
    flat_outputs = list(output.args[0])
    unique_outputs = list(dict.fromkeys(flat_outputs))
    output.args = (tuple(unique_outputs),)
    # write the signature
    specs = [InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None) for node, _ in used_weights]
    specs += [
        InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(n.name), specs_by_name[n.name].target) for n in constants
    ]
    specs += [InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None) for node in inputs]
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in unique_outputs]
    used_names = {str(specs_by_name[node.name].target) for node in constants}
    used_constants = {name: value for name, value in program.exported.constants.items() if name in used_names}
    ranges = dict(program.exported.range_constraints)
    module = program.exported.graph_module
    # assemble twice: the new order of inputs gives the symbols their numbers, and `_declared_ranges` needs these numbers
    program = Program(assemble(module, specs, outputs, ranges, used_constants), len(used_weights))
    ranges = _declared_ranges(program, job)
    program = Program(assemble(module, specs, outputs, ranges, used_constants), len(used_weights))
    return FinalProgram(
        program,
        [weight for _, weight in used_weights],
        [unique_outputs.index(node) for node in flat_outputs],
        weights,
        leaves,
        structure,
    )


def _merge_weights(
    named_values: Mapping[torch.fx.Node, tuple[str, torch.Tensor]],
    constant_values: Mapping[torch.fx.Node, torch.Tensor],
    weights: ModuleWeights,
    job: TraceJob,
) -> tuple[list[tuple[torch.fx.Node, Weight]], list[torch.fx.Node]]:
    """Merge the placeholders of each weight into one (rule 1). Returns these placeholders with their weights, and the
    placeholders of the constants that are not weights.

    `named_values` maps placeholders of weights to (name, value). `constant_values` maps those of constants to values.
    With a weights file, raises SourceError for a constant or a non-persistent buffer that is a view of a weight."""
    first_nodes: dict[int, torch.fx.Node] = {}
    merged: list[tuple[torch.fx.Node, Weight]] = []
    constants: list[torch.fx.Node] = []
    for node, value in [*((node, value) for node, (_, value) in named_values.items()), *constant_values.items()]:
        weight = weights.find(value)
        if weight is None or not weight.persistent:
            _refuse_unsaved_view(value, weight, weights, job)
        if weight is None:
            if node in constant_values:
                constants.append(node)
                continue
            weight = Weight((named_values[node][0],), (), value)
        if id(weight) in first_nodes:
            node.replace_all_uses_with(first_nodes[id(weight)])
            continue
        first_nodes[id(weight)] = node
        merged.append((node, weight))
    return merged, constants


def _two_levels_error(module: str, job: TraceJob) -> SourceError:
    return SourceError(
        f"the module {module!r} quantizes a value that is not a weight to NVFP4: its scales would be computed while the "
        "model runs",
        code="quantization",
        hint="quantize weights only, with W4A16_NVFP4_CFG of Model Optimizer, or to fp8 or int8",
        **job.place("source"),
    )


def _tensors_by_name(exported: ExportedProgram) -> dict[str, torch.Tensor]:
    tensors = {name: value for name, value in exported.state_dict.items() if isinstance(value, torch.Tensor)}
    return tensors | {name: value for name, value in exported.constants.items() if isinstance(value, torch.Tensor)}


def _manifest_order(exported: ExportedProgram, job: TraceJob) -> list[int]:
    """For each of the manifest's inputs: its index among the program's inputs."""
    spec = exported.call_spec.in_spec
    args, kwargs = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    positional = iter(args)
    return [kwargs[entry.name] if entry.keyword else next(positional) for entry in job.inputs]


def _refuse_unsaved_view(value: torch.Tensor, buffer: Weight | None, weights: ModuleWeights, job: TraceJob) -> None:
    """With a weights file, raise SourceError if `value` shares memory with a weight.

    `value` is a tensor that ``state_dict`` does not contain: the value of `buffer`, or a plain attribute."""
    if job.weights is not None and weights.shares_memory(value):
        kept_as = "a plain attribute" if buffer is None else f"the non-persistent buffer {buffer.name!r}"
        raise SourceError(
            f"the model keeps a view of one of its weights as {kept_as}, which `weights:` could not update",
            code="weights",
            hint="take the view in forward",
            **job.place("weights"),
        )


def _declared_ranges(program: Program, job: TraceJob) -> dict[Any, Any]:
    """Symbol → its range: the manifest's for a symbol of the inputs (rule 4), torch's for a size that depends on data.

    Raises SourceError if the dtype, the number of axes or a size of an input is not the declared one (rule 3)."""
    symbols = Symbols(program)
    plan = job.shapes
    for node, entry, shape in zip(program.input_nodes, job.inputs, plan.shapes, strict=True):
        value = node.meta["val"]
        if value.dtype is not dtype_of(entry.dtype) or value.dim() != len(shape):
            raise SourceError(
                f"input {entry.name!r} is {entry.dtype} with {len(shape)} axes in the manifest and "
                f"{dtype_name(value.dtype)} with {value.dim()} in the traced program",
                code="signature",
                **job.place(f"inputs.{entry.name}"),
            )
        for number, (axis, size) in enumerate(zip(shape, value.shape, strict=True)):
            traced_size = symbols.size_expression(size)
            if traced_size == _declared_size(axis, job):
                continue
            if isinstance(axis, SymbolAxis):
                subject = describe_symbol(plan, job.inputs, axis.symbol)
                problem = f"{subject} is declared dynamic, but the traced program has {size_text(traced_size)} there"
                hint = hint_to_make_static(plan, job.inputs, axis.symbol, None)
                path = f"dims.{plan.symbols[axis.symbol].name}"
            else:
                traced_text = size_text(traced_size)
                problem = f"{entry.name}.{number} is {axis} in the manifest and {traced_text} in the traced program"
                hint, path = "write the size that the model takes", ""
            raise SourceError(problem, code="constraint", hint=hint, **job.place(path, f"inputs.{entry.name}"))
    ranges = {
        key: bounds
        for key, bounds in program.exported.range_constraints.items()
        if getattr(key, "is_Symbol", False) and key not in symbols.order
    }
    for key, symbol in zip(symbols.order, plan.symbols, strict=True):
        ranges[key] = ValueRanges(symbol.min // symbol.multiple_of, symbol.max // symbol.multiple_of)
    return ranges


def _declared_size(axis: int | SymbolAxis, job: TraceJob) -> Expression:
    if isinstance(axis, int):
        return axis
    multiple = job.shapes.symbols[axis.symbol].multiple_of
    return ["sym", axis.symbol] if multiple == 1 else ["mul", multiple, ["sym", axis.symbol]]


def size_text(expression: Expression) -> str:
    """A size expression as text for a message."""
    if isinstance(expression, int):
        return str(expression)
    operator, *operands = expression
    if operator == "sym":
        return f"symbol {operands[0]}"
    return f"{operator}({', '.join(size_text(o) for o in operands if not isinstance(o, str))})"
