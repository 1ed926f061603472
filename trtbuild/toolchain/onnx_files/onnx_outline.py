"""Read an outline of a serialized ONNX model: its nodes, weights and types.

The package onnx is not used, because engine workers may not have it. The field numbers are from onnx.proto, and never
change.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from trtbuild.core.values.element_types import BY_ONNX
from trtbuild.toolchain.onnx_files.protobuf import field_spans, fields, messages, packed_integers, to_signed

#: The data of a weight.
Bytes = bytes | bytearray | memoryview

# onnx.proto
MODEL_GRAPH = 7
GRAPH_NODE, GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT = 1, 5, 11, 12
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_OPERATOR, NODE_ATTRIBUTE = 1, 2, 3, 4, 5
_ATTRIBUTE_NAME, _ATTRIBUTE_INT, _ATTRIBUTE_TENSOR, _ATTRIBUTE_GRAPH, _ATTRIBUTE_INTS = 1, 3, 5, 6, 8
_ATTRIBUTE_FLOAT = 2
TENSOR_DIMS, TENSOR_TYPE, _TENSOR_INT64, TENSOR_NAME, _TENSOR_RAW, TENSOR_LOCATION = 1, 2, 7, 8, 9, 14
EXTERNAL = 1  # TensorProto.DataLocation
_VALUE_NAME, _VALUE_TYPE, _TYPE_TENSOR, _TENSOR_ELEMENT = 1, 2, 1, 1
FLOAT32, _INT64, FLOAT16, FLOAT64, BFLOAT16 = 1, 7, 10, 11, 16  # TensorProto.DataType
#: INT4 and FLOAT4E2M1: two numbers in a byte.
FOUR_BITS = (22, 23)
#: Attributes with which ONNX operators (Cast, EyeLike, RandomNormal, …) name an element type.
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
#: Attributes of Constant that are int64 numbers.
_INT64_ATTRIBUTES = ("value_int", "value_ints")


@dataclass(frozen=True)
class ExternalWeight:
    """An initializer with external data."""

    name: str
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True)
class Node:
    """A node of the outer graph. `inputs` and `attribute_types` include those of the nodes in its nested graphs, and
    `attribute_types` those of nested initializers."""

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    #: Element types (TensorProto.DataType) that its attributes name, and those of tensors in its attributes.
    attribute_types: tuple[int, ...]
    #: The smallest and largest number in its int64 tensors and in the attributes `_INT64_ATTRIBUTES`, without those of
    #: nested graphs. None if there are no such numbers.
    int64_range: tuple[int, int] | None = None
    #: Element types of the outputs of its first nested graph; 0 for a type that is not declared. The last of these outputs
    #: are the node's own outputs. For example, the first output of a Loop's nested graph is the condition.
    nested_output_types: tuple[int, ...] = ()
    #: (name, number) of its float attributes.
    floats: tuple[tuple[str, float], ...] = ()
    #: The operators of the nodes in its nested graphs.
    nested_operators: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Outline:
    """The outer graph of a model: its nodes and external weights in order, and the (name, element type) of each
    initializer, input and output."""

    nodes: tuple[Node, ...]
    weights: tuple[ExternalWeight, ...]
    initializers: tuple[tuple[str, int], ...]
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]
    #: The name of an int64 initializer with inline data → its smallest and largest number.
    int64_ranges: Mapping[str, tuple[int, int]]


def read_outline(model: bytes) -> Outline:
    """Read the outline of `model`. Raises ValueError if `model` is not a protobuf message, if an external weight has a type
    of unknown size, or if the raw data of an int64 tensor are not a multiple of eight bytes."""
    graph = next((part for field, part in messages(memoryview(model)) if field == MODEL_GRAPH), memoryview(b""))
    weights, initializers = [], []
    parts: dict[int, list[memoryview]] = {}
    for field, part in messages(graph):
        parts.setdefault(field, []).append(part)
    ranges = {}
    for tensor in parts.get(GRAPH_INITIALIZER, []):
        name, element, weight = _read_tensor(tensor)
        initializers.append((name, element))
        if weight is not None:
            weights.append(weight)
        elif element == _INT64:
            ranges[name] = _int64_range(tensor)
    return Outline(
        tuple(map(_read_node, parts.get(GRAPH_NODE, []))),
        tuple(weights),
        tuple(initializers),
        tuple(map(_read_value, parts.get(_GRAPH_INPUT, []))),
        tuple(map(_read_value, parts.get(_GRAPH_OUTPUT, []))),
        ranges,
    )


def _read_node(message: memoryview) -> Node:
    texts: dict[int, list[str]] = {NODE_INPUT: [], NODE_OUTPUT: [], NODE_NAME: [], NODE_OPERATOR: []}
    types: list[int] = []
    numbers: list[int] = []
    results: list[int] = []
    floats: list[tuple[str, float]] = []
    nested_operators: set[str] = set()
    for field, part in messages(message):
        if field in texts:
            texts[field].append(bytes(part).decode())
        elif field == NODE_ATTRIBUTE:
            _read_attribute(part, texts[NODE_INPUT], types, numbers, results, nested_operators)
            floats += _float_attributes(part)
    return Node(
        "".join(texts[NODE_NAME]),
        "".join(texts[NODE_OPERATOR]),
        tuple(texts[NODE_INPUT]),
        tuple(texts[NODE_OUTPUT]),
        tuple(types),
        (min(numbers), max(numbers)) if numbers else None,
        tuple(results),
        tuple(floats),
        frozenset(nested_operators),
    )


def _float_attributes(attribute: memoryview) -> list[tuple[str, float]]:
    name, numbers = "", []
    for field, value, field_bytes in field_spans(attribute):
        if field == _ATTRIBUTE_NAME and isinstance(value, memoryview):
            name = bytes(value).decode()
        elif field == _ATTRIBUTE_FLOAT and value is None:
            numbers = [struct.unpack("<f", field_bytes[-4:])[0]]
    return [(name, number) for number in numbers]


def _read_attribute(
    message: memoryview,
    inputs: list[str],
    types: list[int],
    numbers: list[int],
    results: list[int],
    nested_operators: set[str],
) -> None:
    """Read one attribute of a node, and add its content to the lists and the set. `numbers` gets the int64 constants. The
    other lists and the set become the fields of `Node` with these names."""
    name, number = "", 0
    integers: list[int] = []
    for field, value in fields(message):
        if field in (_ATTRIBUTE_INT, _ATTRIBUTE_INTS):
            integers += [value] if isinstance(value, int) else list(packed_integers(value))
            number = integers[-1] if field == _ATTRIBUTE_INT else number
        elif isinstance(value, int):
            continue
        elif field == _ATTRIBUTE_NAME:
            name = bytes(value).decode()
        elif field == _ATTRIBUTE_TENSOR:
            types.append(_read_tensor(value)[1])
            if types[-1] == _INT64:
                numbers += _int64_range(value)
        elif field == _ATTRIBUTE_GRAPH:
            if not results:
                results += [
                    _read_value(part)[1] for graph_field, part in messages(value) if graph_field == _GRAPH_OUTPUT
                ]
            for graph_field, part in messages(value):
                if graph_field == GRAPH_NODE:
                    node = _read_node(part)
                    inputs += node.inputs
                    types += node.attribute_types
                    nested_operators |= {node.operator, *node.nested_operators}
                elif graph_field == GRAPH_INITIALIZER:
                    types.append(_read_tensor(part)[1])
    if name in _TYPE_ATTRIBUTES and number:
        types.append(number)
    if name in _INT64_ATTRIBUTES:
        types.append(_INT64)
        numbers += map(to_signed, integers)


def _read_value(message: memoryview) -> tuple[str, int]:
    name, element = "", 0
    for field, part in messages(message):
        if field == _VALUE_NAME:
            name = bytes(part).decode()
        elif field == _VALUE_TYPE:
            for kind, tensor in messages(part):
                for number, value in fields(tensor) if kind == _TYPE_TENSOR else ():
                    if number == _TENSOR_ELEMENT and isinstance(value, int):
                        element = value
    return name, element


def _read_tensor(message: memoryview) -> tuple[str, int, ExternalWeight | None]:
    dims: list[int] = []
    name, element, location = "", 0, 0
    for field, value in fields(message):
        if field == TENSOR_DIMS:
            dims += [value] if isinstance(value, int) else list(packed_integers(value))
        elif field == TENSOR_TYPE and isinstance(value, int):
            element = value
        elif field == TENSOR_NAME and not isinstance(value, int):
            name = bytes(value).decode()
        elif field == TENSOR_LOCATION and isinstance(value, int):
            location = value
    if location != EXTERNAL:
        return name, element, None
    if element in FOUR_BITS:
        return name, element, ExternalWeight(name, tuple(dims), (math.prod(dims) + 1) // 2)
    if element not in BY_ONNX:
        raise ValueError(f"weight {name} has ONNX element type {element}, whose size is not known")
    return name, element, ExternalWeight(name, tuple(dims), math.prod(dims) * BY_ONNX[element].itemsize)


def _int64_range(tensor: memoryview) -> tuple[int, int]:
    """Return the smallest and largest number of an int64 tensor with inline data, or (0, 0) for an empty tensor.

    Raises ValueError if the raw data are not a multiple of eight bytes."""
    numbers: list[int] = []
    for field, value in fields(tensor):
        if field == _TENSOR_RAW and isinstance(value, memoryview):
            if len(value) % 8:
                raise ValueError(f"an int64 tensor with {len(value)} bytes of data")
            numbers += [number for (number,) in struct.iter_unpack("<q", value)]
        elif field == _TENSOR_INT64:
            unsigned = [value] if isinstance(value, int) else list(packed_integers(value))
            numbers += map(to_signed, unsigned)
    return (min(numbers), max(numbers)) if numbers else (0, 0)
