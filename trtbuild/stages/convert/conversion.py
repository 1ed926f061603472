"""Convert one partition to ONNX.

Rules
1. The result depends only on the structure (the canonical text of the partition), the opset and the plugins. While the
   model is optimized, weights are graph inputs; afterwards they are external initializers without data. So the bytes do
   not depend on the values of weights. (If weights were initializers, the optimizer would fold them, and merge equal
   ones. For example, it would merge three zero biases, and the conversion would be wrong after a fine-tune.)
2. The optimizer always runs. Without it, TensorRT-RTX's parser rejects most models (ReduceMean axes, SplitToSequence).
3. Names, order, size symbols and bytes are canonical. The module `structure` prepares the program before the translation,
   and the module `canonical` writes the model afterwards.
4. Before the translation, implicit type promotion becomes explicit, and run-time assertions are removed, as in
   torch.onnx.export. The lower step has decomposed the operators already.
5. The types and sizes that ONNX infers must equal those of the program (module `types`). Inputs, weights and outputs must
   be real, because a translation writes complex numbers as pairs of floats.
6. Quantizers to float8, int4 and float4 need newer opsets than other operators (`trtbuild.stages.program.quantized_onnx`).
   If the toolchain's opset is too old for them, the model gets a newer opset, provided that the parser reads newer ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir
from torch.export import ExportedProgram

from trtbuild.core.model.plugins import ONNX_DOMAIN, Plugin
from trtbuild.errors import ConversionRefused
from trtbuild.stages.convert.canonical import ORIGIN_KEY, canonical_model
from trtbuild.stages.convert.mistranslated import is_mistranslated
from trtbuild.stages.convert.opset import lower_opset, raise_opset
from trtbuild.stages.convert.optimizing import optimize
from trtbuild.stages.convert.structure import copy_for_exporter, size_names
from trtbuild.stages.convert.types import refuse_other_types
from trtbuild.stages.program.fixed_symbols import suppress_new_guards
from trtbuild.stages.program.functional import Program, calls_with_nested
from trtbuild.stages.program.plugins import (
    forget_shapes,
    is_plugin,
    map_operators_to_plugins,
    plugin_call_checked_by,
    write_nodes,
)
from trtbuild.stages.program.quantized_onnx import OPSET_OF_NEW_PARSERS, quantizers_in, required_opset
from trtbuild.stages.program.text import target_name
from trtbuild.stages.program.translations import (
    TranslationFailed,
    has_translation,
    promote_types,
    remove_assertions,
    silence_exporter,
    translate,
)

#: The address of an object in the text of an error.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True)
class Conversion:
    """A partition as ONNX.

    `model` is the serialized ModelProto: inputs ``i0…``, outputs ``o0…``, weights ``w0…``, nodes ``n0…`` in graph order.
    The number of a weight is its index among the program's weights; a weight that no node reads is absent. `origins` are
    pairs: the name of a node, and the index of the call_function node that it came from. A node is absent if its origin
    is unknown.
    """

    model: bytes
    origins: tuple[tuple[str, int], ...]


def convert(program: Program, opset: int, plugins: Sequence[Plugin] = ()) -> Conversion:
    """Convert `program` to an ONNX model in `opset`, or in a newer one (rule 6). Calls of the operators of `plugins` become
    nodes with the names of the plugins.

    Raises ConversionRefused. The error's `nodes` are the indices of the call_function nodes that cannot be converted, if
    they are known.
    """
    untranslatable = untranslatable_calls(program, plugins)
    if untranslatable:
        names = ", ".join(sorted({name for _, name in untranslatable}))
        raise ConversionRefused(
            f"the PyTorch exporter has no ONNX translation for {names}",
            hint="name the operators in partition.torch_executed_ops, so that they stay in PyTorch",
            nodes=tuple(index for index, _ in untranslatable),
        )
    _refuse_complex_boundaries(program)
    opset = _opset_for_quantizers(program, opset)
    exported = copy_for_exporter(program)
    write_nodes(exported.graph, map_operators_to_plugins(plugins))
    try:
        with suppress_new_guards():
            model = _translate_program(program, exported, opset)
        with silence_exporter():
            if opset > OPSET_OF_NEW_PARSERS:
                raise_opset(model, opset)  # the optimizer infers types, and needs an opset with the quantizers' types
            optimize(model)
            _find_origins(model, exported)
            raise_opset(model, opset)
            proto = lower_opset(onnx_ir.to_proto(model), opset)
    except (ConversionRefused, MemoryError):
        raise
    except Exception as error:  # a translation may raise any error
        lines = str(error).strip().splitlines() or [""]
        reason = _ADDRESS.sub("", lines[0])  # because the reason is stored, it must be the same in every process
        raise ConversionRefused(f"the PyTorch exporter failed: {type(error).__name__}: {reason}") from error
    foreign_domains = sorted({entry.domain for entry in proto.opset_import} - {"", ONNX_DOMAIN})
    if foreign_domains or proto.functions:
        raise ConversionRefused(f"the translation uses operators that are not ONNX's own: {', '.join(foreign_domains)}")
    result, origins = canonical_model(proto, program.weights, opset)
    refuse_other_types(result, program, origins)
    return Conversion(result.SerializeToString(deterministic=True), origins)


def _opset_for_quantizers(program: Program, opset: int) -> int:
    """The opset for `program`: `opset`, or a newer one for its quantizers (rule 6). Raises ConversionRefused if the
    toolchain does not read the newer one."""
    required = required_opset(program.graph)
    if required <= opset or opset >= OPSET_OF_NEW_PARSERS:
        return max(required, opset)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    quantizers = set(quantizers_in(program.graph))
    raise ConversionRefused(
        f"the quantizers need ONNX opset {required}, and the toolchain takes {opset}",
        hint="use a newer toolchain, or quantize to int8",
        nodes=tuple(index for index, node in enumerate(calls) if node in quantizers),
    )


def _refuse_complex_boundaries(program: Program) -> None:
    boundary = {*program.input_nodes, *program.output_nodes, *program.weight_nodes}
    complex_nodes = {node for node in boundary if node.meta["val"].is_complex()}
    if not complex_nodes:
        return
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    touching_calls = [
        index
        for index, node in enumerate(calls)
        if node in complex_nodes or not complex_nodes.isdisjoint(node.all_input_nodes)
    ]
    kinds = sorted({str(node.meta["val"].dtype).removeprefix("torch.") for node in complex_nodes})
    raise ConversionRefused(
        f"an engine neither takes nor gives {' or '.join(kinds)}",
        hint="convert the values with torch.view_as_real where they are computed",
        nodes=tuple(touching_calls),
    )


def untranslatable_calls(program: Program, plugins: Sequence[Plugin] = ()) -> list[tuple[int, str]]:
    """List the call_function nodes without a correct translation: (index, name of the operator).

    If a nested graph has such a call, the index is that of the outer call, and the name that of the nested operator.
    """
    plugins_by_operator = map_operators_to_plugins(plugins)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    return [
        (index, target_name(call.target))
        for index, node in enumerate(calls)
        if not is_plugin(node, plugins_by_operator)
        and (not plugins_by_operator or plugin_call_checked_by(node, plugins_by_operator) is None)
        for call in calls_with_nested(node)
        if not has_translation(call) or is_mistranslated(call)
    ]


def _translate_program(program: Program, exported: ExportedProgram, opset: int) -> onnx_ir.Model:
    try:
        promote_types(exported.graph_module)
        _name_outputs(exported)
        forget_shapes(exported.graph)
        remove_assertions(exported.graph_module)
        model = translate(exported, opset)
    except TranslationFailed as error:
        node = next((node for node in exported.graph.nodes if node.name == error.node), None)
        origin = None if node is None else node.meta.get(ORIGIN_KEY)
        raise ConversionRefused(
            f"the PyTorch exporter cannot translate {'a node' if node is None else target_name(node.target)}: {error}",
            hint="name the operator in partition.torch_executed_ops, so that it stays in PyTorch",
            nodes=() if origin is None else (origin,),
        ) from error
    sizes = size_names(program)
    for value in _all_values(model):
        value.metadata_props.clear()
        if value.shape is not None:
            value.shape = onnx_ir.Shape([_canonical_size(size, sizes) for size in value.shape])
    for node in onnx_ir.traversal.RecursiveGraphIterator(model.graph):
        origin = node.meta["node"].meta.get(ORIGIN_KEY) if "node" in node.meta else None
        node.metadata_props.clear()
        if origin is not None:
            node.metadata_props[ORIGIN_KEY] = str(origin)
    return model


def _name_outputs(exported: ExportedProgram) -> None:
    """Write the names of the output nodes into the signature, because type promotion may have appended a cast to an
    output."""
    for spec, node in zip(exported.graph_signature.output_specs, exported.graph.output_node().args[0], strict=True):
        spec.arg.name = node.name


def _find_origins(model: onnx_ir.Model, exported: ExportedProgram) -> None:
    """Find the origins of nodes that the optimizer inserted. The optimizer derives a new value's name from the name of the
    replaced value. So both begin with the exported node's name (``n12``, ``n12__0``, ``n12_split_0``)."""
    calls = {node.name: node.meta[ORIGIN_KEY] for node in exported.graph.nodes if ORIGIN_KEY in node.meta}
    for node in onnx_ir.traversal.RecursiveGraphIterator(model.graph):
        if ORIGIN_KEY not in node.metadata_props:
            exported_names = [str(output.name).partition("_")[0] for output in node.outputs]
            origins = [calls[name] for name in exported_names if name in calls]
            if origins:
                node.metadata_props[ORIGIN_KEY] = str(origins[0])


def _all_values(model: onnx_ir.Model) -> Iterator[onnx_ir.Value]:
    yield from model.graph.inputs
    yield from model.graph.initializers.values()
    for node in onnx_ir.traversal.RecursiveGraphIterator(model.graph):
        yield from node.outputs


def _canonical_size(size: int | onnx_ir.SymbolicDim, names: Mapping[str, str]) -> int | str | None:
    if isinstance(size, int):
        return size
    return None if size.value is None else names.get(size.value)
