"""An ONNX model between the steps: its blob, its graph text, and its form for one toolchain.

Rules
1. The blob is a canonical model (`trtbuild.stages.convert.canonical`) in its original opset, with metadata: each node's
   name in the user's file (`NAME_KEY`), the model's types (`TYPES_KEY`), and example shapes of its inputs (`EXAMPLE_KEY`).
2. The graph text covers everything except these names and examples.
3. The model is converted to the toolchain's opset only if its own opset is newer. A model that quantizes in blocks may be
   an exception (`_OPSET_OF_BLOCK_READERS`). The result of onnx's converter is run and compared with the original (module
   `proving`).
4. Parsers for an old opset ignore some features without an error. For such a parser, these features are rewritten or
   rejected in models of every opset. Features that every parser computes in another way than ONNX are
   rewritten or rejected, too (folder `parser`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx.version_converter

from trtbuild.core.partition.partitions import TensorType
from trtbuild.core.recipes.keys import LAST_DOWNGRADED_OPSET
from trtbuild.core.values.expressions import Expression
from trtbuild.errors import ConversionRefused
from trtbuild.stages.convert.canonical import canonical_model
from trtbuild.stages.graphs.parser.form import parser_form

#: Keys of metadata properties. Nodes have the first one, and the model has the others.
NAME_KEY = "trtbuild.name"
TYPES_KEY = "trtbuild.types"
EXAMPLE_KEY = "trtbuild.example"

#: Types with 4 bits, which ONNX has since opset 21 (FLOAT4E2M1: 23).
_FOUR_BITS = (onnx.TensorProto.UINT4, onnx.TensorProto.INT4, onnx.TensorProto.FLOAT4E2M1)
#: Parsers of toolchains with this opset or a later one also read the quantizers of opsets 21 to 23 (measured with
#: TensorRT-RTX 1.7.1). So models that quantize in blocks or to 4 bits keep their opset. All other models with a
#: newer opset are converted, so that their existing engines are found in caches.
_OPSET_OF_BLOCK_READERS = 20


@dataclass(frozen=True)
class ModelTypes:
    """The types of inputs and outputs, in order, and the number of weights."""

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    weights: int

    def to_json(self) -> str:
        lists = [[[type_.dtype, type_.shape] for type_ in types] for types in (self.inputs, self.outputs)]
        return json.dumps([*lists, self.weights], separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> ModelTypes:
        inputs, outputs, weights = json.loads(text)
        input_types, output_types = (tuple(TensorType(d, tuple(s)) for d, s in each) for each in (inputs, outputs))
        return cls(input_types, output_types, int(weights))


def blob(
    model: onnx.ModelProto,
    weights: int,
    inputs: Sequence[TensorType],
    outputs: Sequence[Sequence[Expression]],
    example: Sequence[Sequence[int]],
) -> bytes:
    """Return the blob of `model`. The nodes of `model` have the user's names, and its first `weights` inputs are weights.

    `inputs` are the types of the other inputs, and `example` are example shapes of these inputs. `outputs` are the shapes
    of the outputs."""
    names = [node.name for node in model.graph.node]
    model_opset = opset(model)
    result, _ = canonical_model(model, weights, model_opset)
    names += [names[-1] if names else ""] * (len(result.graph.node) - len(names))  # the Identity nodes of outputs
    for node, name in zip(result.graph.node, names, strict=True):
        node.metadata_props.add(key=NAME_KEY, value=name)
    elements = [value.type.tensor_type.elem_type for value in result.graph.output]
    results = tuple(
        TensorType(dtype_name(element), tuple(shape)) for element, shape in zip(elements, outputs, strict=True)
    )
    result.metadata_props.add(key=TYPES_KEY, value=ModelTypes(tuple(inputs), results, weights).to_json())
    result.metadata_props.add(key=EXAMPLE_KEY, value=json.dumps([list(shape) for shape in example]))
    return bytes(result.SerializeToString(deterministic=True))


def opset(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operators that `model` uses."""
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)


def dtype_name(element: int) -> str:
    """The name of an ``onnx.TensorProto.DataType``, as torch writes it: ``float32`` for FLOAT."""
    name = str(onnx.TensorProto.DataType.Name(element)).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def types(data: bytes) -> ModelTypes:
    """The types in a blob."""
    return ModelTypes.from_json(_property(onnx.ModelProto.FromString(data), TYPES_KEY))


def graph_text(data: bytes) -> str:
    """The graph text of a blob (rule 2). The recipes of later steps contain its digest."""
    model = onnx.ModelProto.FromString(data)
    for node in model.graph.node:
        node.ClearField("metadata_props")
    types_text = _property(model, TYPES_KEY)
    model.ClearField("metadata_props")
    model.metadata_props.add(key=TYPES_KEY, value=types_text)
    return f"trtbuild.onnx/1 {hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()}\n"


def node_names(data: bytes) -> list[tuple[str, str, str]]:
    """(name in the user's file, operator, "") of each node of the outer graph. The empty text takes the place of a module
    path."""
    model = onnx.ModelProto.FromString(data)
    return [(_user_name(node), node.op_type, "") for node in model.graph.node]


def origins(model: bytes) -> list[tuple[str, int]]:
    """(name, index) of each node of a canonical model."""
    proto = onnx.ModelProto.FromString(model)
    return [(node.name, number) for number, node in enumerate(proto.graph.node)]


def convert_to_opset(data: bytes, parser_opset: int) -> tuple[bytes, tuple[int, ...]]:
    """Return the model of a blob for a parser of `parser_opset`, in canonical form, without metadata.

    The second result has a number for each node of the returned model: the index of the blob's node that it came from, or
    -1 if that is not known. Raises ConversionRefused if the model cannot be written for the parser, or if the conversion
    changes the model's results.
    """
    source = onnx.ModelProto.FromString(data)
    numbers = {node.name: number for number, node in enumerate(source.graph.node)}
    model_types = types(data)
    model, model_opset = _with_weight_inputs(source, model_types.weights), opset(source)
    keeps_opset = model_opset <= parser_opset or (parser_opset >= _OPSET_OF_BLOCK_READERS and _has_blocks(model))
    if not keeps_opset:
        model = _lower_to_opset(model, model_opset, parser_opset, json.loads(_property(source, EXAMPLE_KEY)))
        model_opset = parser_opset
    if parser_opset <= LAST_DOWNGRADED_OPSET:
        from trtbuild.stages.convert.opset import adapt_to_old_parser  # it loads onnxscript

        try:
            model = adapt_to_old_parser(model)
        except ConversionRefused as error:
            raise ConversionRefused(
                f"the toolchain takes ONNX opset {parser_opset}, and the model cannot be written in it: {error.text}",
                hint="use a newer toolchain, or export the model without this operator",
            ) from error
    model = parser_form(model, model_opset)
    result, _ = canonical_model(model, model_types.weights, model_opset)
    calls = [numbers.get(node.name, -1) for node in model.graph.node]
    calls += [-1] * (len(result.graph.node) - len(calls))  # `canonical_model` adds Identity nodes at the end
    return result.SerializeToString(deterministic=True), tuple(calls)


def _has_blocks(model: onnx.ModelProto) -> bool:
    """Whether a model quantizes in blocks or to 4 bits, which ONNX has since opset 21."""
    if any(tensor.data_type in _FOUR_BITS for tensor in model.graph.initializer):
        return True
    attributes = (attribute for node in model.graph.node for attribute in node.attribute)
    return any(attribute.name == "block_size" and attribute.i for attribute in attributes)


def _lower_to_opset(
    model: onnx.ModelProto, model_opset: int, new_opset: int, example: Sequence[Sequence[int]]
) -> onnx.ModelProto:
    from trtbuild.stages.convert.opset import lower_opset  # it loads onnxscript
    from trtbuild.stages.graphs.proving import refuse_change

    try:
        if (model_opset, new_opset) == (18, 17):
            return lower_opset(model, new_opset)
        converted = onnx.version_converter.convert_version(model, new_opset)
    except Exception as error:  # the converter's assertions raise RuntimeError and other errors
        raise ConversionRefused(
            f"the ONNX model is in opset {model_opset}, the toolchain takes {new_opset}, and the model cannot be written "
            f"in that: {error.text if isinstance(error, ConversionRefused) else _last_line(error)}",
            hint=f"export it with opset_version={new_opset}",
        ) from error
    refuse_change(model, converted, example, new_opset)
    return converted


def _property(model: onnx.ModelProto, key: str) -> str:
    return next(str(entry.value) for entry in model.metadata_props if entry.key == key)


def _with_weight_inputs(model: onnx.ModelProto, count: int) -> onnx.ModelProto:
    """Copy a model whose weights are external files, with the weights as the first graph inputs, because onnx's converter
    does not read files."""
    external = {tensor.name: tensor for tensor in model.graph.initializer if _is_external(tensor)}
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.ClearField("metadata_props")
    inline = [tensor for tensor in copy.graph.initializer if not _is_external(tensor)]
    inputs = [*copy.graph.input]
    copy.graph.ClearField("initializer")
    copy.graph.ClearField("input")
    copy.graph.initializer.extend(inline)
    for number in range(count):
        tensor = external.get(f"w{number}")
        element = tensor.data_type if tensor is not None else onnx.TensorProto.FLOAT
        dims: list[int] = list(tensor.dims) if tensor is not None else []
        copy.graph.input.append(onnx.helper.make_tensor_value_info(f"w{number}", element, dims))
    copy.graph.input.extend(inputs)
    for node in copy.graph.node:
        node.ClearField("metadata_props")
    return copy


def _is_external(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def _user_name(node: Any) -> str:
    return next((str(entry.value) for entry in node.metadata_props if entry.key == NAME_KEY), str(node.name))


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].rpartition("failed: ")[2] or lines[-1]
