"""Check a conversion: the types and sizes that ONNX infers must be equal to those of the program.

Rules
1. The check runs at several points. A point gives each symbol of the program a number, so the sizes of the inputs are
   numbers. From them, ONNX infers other sizes, with data propagation. The inferred element type, rank and sizes of an
   output must be those of the program. The toolchain's parser checks the sizes that ONNX cannot infer.
2. If the result of a call inside the program also differs, the error names the first such call, because the translation
   of its operator is wrong.
3. ONNX must define the operator of each node of the outer graph, except plugins, for the element types of the operands.
   TensorRT's parser does not check this; for example, it accepts a power of booleans. Here int32 and int64 count as one
   type, because TensorRT accepts indices of both.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import onnx
import onnx.defs
import onnx.shape_inference
from onnx_ir.tensor_adapters import from_torch_dtype

from trtbuild.errors import ConversionRefused
from trtbuild.stages.convert.canonical import Origins
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.sizes import Point, Type, declared_types_at, points_of, types_text
from trtbuild.stages.program.text import target_name

#: A type that ONNX has inferred: the element type (0 if unknown), and the sizes. An unknown size is None. If the rank is
#: unknown, None takes the place of all sizes.
Inferred = tuple[int, tuple[int | None, ...] | None]

#: Name in ONNX's schemas, such as ``tensor(float)`` → element type.
_ELEMENT_TYPES = {
    f"tensor({onnx.TensorProto.DataType.Name(number).lower()})": number for number in onnx.TensorProto.DataType.values()
}
_INTEGERS = frozenset((onnx.TensorProto.INT32, onnx.TensorProto.INT64))

_HINT = "name the operator in partition.torch_executed_ops, so that it stays in PyTorch"


def refuse_other_types(model: onnx.ModelProto, program: Program, origins: Origins) -> None:
    """Raise ConversionRefused if `model`, in canonical form, has other output types or sizes than `program`, or if an
    operand has a type that ONNX does not allow (rule 3)."""
    for point_number, point in enumerate(points_of(program)):
        inferred = _infer_types(model, program, point)
        if point_number == 0:
            _refuse_operands(model, origins, inferred)
        for number, node in enumerate(program.output_nodes):
            (declared,) = declared_types_at(node.meta["val"], point)
            if not _agree(inferred.get(f"o{number}"), declared):
                raise _refusal(model, program, origins, inferred, point, number)


def _infer_types(model: onnx.ModelProto, program: Program, point: Point) -> dict[str, Inferred]:
    """Value of the outer graph → its type at a point. Empty if the inference fails."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value, node in zip(copy.graph.input, program.input_nodes, strict=True):
        (_, sizes), *_ = declared_types_at(node.meta["val"], point)
        for axis, size in zip(value.type.tensor_type.shape.dim, sizes, strict=True):
            axis.Clear()
            if size is not None:
                axis.dim_value = size
    for value in copy.graph.output:
        value.ClearField("type")
    try:
        graph = onnx.shape_inference.infer_shapes(copy, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, RuntimeError):
        return {}
    return {value.name: _inferred_type_of(value.type) for value in (*graph.value_info, *graph.output)}


def _refuse_operands(model: onnx.ModelProto, origins: Origins, inferred: Mapping[str, Inferred]) -> None:
    """Raise ConversionRefused for a node with an operand whose type ONNX does not allow (rule 3)."""
    elements = {name: element for name, (element, _) in inferred.items()}
    elements |= {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    elements |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    (opset,) = [entry.version for entry in model.opset_import if not entry.domain]
    calls = dict(origins)
    for node in model.graph.node:
        if node.domain:  # ONNX does not define plugins
            continue
        operands = [elements.get(name, 0) for name in node.input]
        wrong_type = next(
            (
                element
                for element, allowed in zip(operands, _allowed_types(node.op_type, len(operands), opset), strict=True)
                if element and allowed and not _is_allowed(element, allowed)
            ),
            None,
        )
        if wrong_type is not None:
            raise ConversionRefused(
                f"ONNX's {node.op_type} is not defined for {_type_text((wrong_type, None))}",
                hint=_HINT,
                nodes=(calls[node.name],) if node.name in calls else (),
            )


@functools.cache
def _allowed_types(operator: str, operand_count: int, opset: int) -> tuple[frozenset[int], ...]:
    """The allowed element types of each operand; an empty set allows every type."""
    schema = onnx.defs.get_schema(operator, opset, "")
    last = len(schema.inputs) - 1
    return tuple(
        frozenset(_ELEMENT_TYPES[text] for text in schema.inputs[min(position, last)].types if text in _ELEMENT_TYPES)
        for position in range(operand_count)
    )


def _is_allowed(element: int, allowed: frozenset[int]) -> bool:
    return element in allowed or (element in _INTEGERS and not _INTEGERS.isdisjoint(allowed))


def _inferred_type_of(type_: onnx.TypeProto) -> Inferred:
    tensor = type_.tensor_type
    if not tensor.HasField("shape"):
        return tensor.elem_type, None
    return tensor.elem_type, tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)


def _agree(inferred: Inferred | None, declared: Type) -> bool:
    element, sizes = inferred or (0, None)
    dtype, expected = declared
    if dtype.is_complex:  # ONNX has a pair of floats instead
        return True
    if element and element != int(from_torch_dtype(dtype)):
        return False
    if sizes is None:
        return True
    pairs = zip(sizes, expected, strict=False)
    return len(sizes) == len(expected) and all(a == b for a, b in pairs if a is not None and b is not None)


def _refusal(
    model: onnx.ModelProto,
    program: Program,
    origins: Origins,
    inferred: Mapping[str, Inferred],
    point: Point,
    output: int,
) -> ConversionRefused:
    """The error about output number `output`, whose inferred type is wrong (rule 2)."""
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    last_node_names = {call: name for name, call in origins}
    nodes_by_name = {node.name: node for node in model.graph.node}
    for call, name in sorted(last_node_names.items()):
        declared = declared_types_at(calls[call].meta.get("val"), point)
        if (
            len(declared) == 1
            and name in nodes_by_name
            and not _agree(inferred.get(nodes_by_name[name].output[0]), declared[0])
        ):
            inferred_type = inferred[nodes_by_name[name].output[0]]
            return ConversionRefused(
                f"the ONNX translation of {target_name(calls[call].target)} gives {_type_text(inferred_type)} "
                f"where the model has {types_text(declared)}",
                hint=_HINT,
                nodes=(call,),
            )
    declared = declared_types_at(program.output_nodes[output].meta["val"], point)
    return ConversionRefused(
        f"the ONNX translation gives {_type_text(inferred[f'o{output}'])} for an output that is {types_text(declared)}",
        hint=_HINT,
    )


def _type_text(inferred: Inferred) -> str:
    element, sizes = inferred
    name = onnx.TensorProto.DataType.Name(element).lower()
    texts: Sequence[str] = ["?" if size is None else str(size) for size in sizes or ()]
    return name if sizes is None else f"{name}[{', '.join(texts)}]"
