"""Replace nodes and initializers of a serialized ONNX model. All other fields keep their bytes.

The package onnx is not used, because engine workers may not have it."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence, Set

from trtbuild.toolchain.onnx_files.onnx_outline import (
    EXTERNAL,
    GRAPH_INITIALIZER,
    GRAPH_NODE,
    MODEL_GRAPH,
    NODE_ATTRIBUTE,
    NODE_INPUT,
    NODE_NAME,
    NODE_OPERATOR,
    NODE_OUTPUT,
    TENSOR_DIMS,
    TENSOR_LOCATION,
    TENSOR_NAME,
    TENSOR_TYPE,
)
from trtbuild.toolchain.onnx_files.protobuf import encode_delimited, encode_fixed32, encode_integer, field_spans

# onnx.proto
_TENSOR_EXTERNAL_DATA, _ENTRY_KEY, _ENTRY_VALUE = 13, 1, 2
_ATTRIBUTE_NAME, _ATTRIBUTE_FLOAT, _ATTRIBUTE_INT, _ATTRIBUTE_TYPE = 1, 2, 3, 20
_FLOAT_TYPE, _INT_TYPE = 1, 2  # AttributeProto.AttributeType


def edit_model(
    model: bytes,
    *,
    nodes: Mapping[int, Sequence[bytes]],
    removed_initializers: Set[int] = frozenset(),
    initializers: Sequence[bytes] = (),
) -> bytes:
    """Return `model` with changes in its outer graph. `nodes` maps the position of a node to the nodes that replace it.
    `removed_initializers` are positions. `initializers` are added."""
    added = b"".join(encode_delimited(GRAPH_INITIALIZER, entry) for entry in initializers)
    parts = [
        encode_delimited(number, b"".join(_edited_fields(value, nodes, removed_initializers)) + added)
        if number == MODEL_GRAPH and isinstance(value, memoryview)
        else bytes(field)
        for number, value, field in field_spans(memoryview(model))
    ]
    return b"".join(parts)


def _edited_fields(
    graph: memoryview, nodes: Mapping[int, Sequence[bytes]], removed_initializers: Set[int]
) -> Iterator[bytes]:
    node_position = initializer_position = -1
    for number, _, field in field_spans(graph):
        if number == GRAPH_NODE:
            node_position += 1
            if node_position in nodes:
                yield from (encode_delimited(GRAPH_NODE, replacement) for replacement in nodes[node_position])
                continue
        elif number == GRAPH_INITIALIZER:
            initializer_position += 1
            if initializer_position in removed_initializers:
                continue
        yield bytes(field)


def encode_external_tensor(name: str, shape: Sequence[int], element: int) -> bytes:
    """Encode a TensorProto with external data, whose location is the tensor's name."""
    location = encode_delimited(_ENTRY_KEY, b"location") + encode_delimited(_ENTRY_VALUE, name.encode())
    return (
        b"".join(encode_integer(TENSOR_DIMS, size) for size in shape)
        + encode_integer(TENSOR_TYPE, element)
        + encode_delimited(TENSOR_NAME, name.encode())
        + encode_delimited(_TENSOR_EXTERNAL_DATA, location)
        + encode_integer(TENSOR_LOCATION, EXTERNAL)
    )


def encode_node(
    operator: str, name: str, inputs: Sequence[str], outputs: Sequence[str], attributes: Mapping[str, int | float]
) -> bytes:
    """Encode a NodeProto."""
    return b"".join(
        (
            *(encode_delimited(NODE_INPUT, text.encode()) for text in inputs),
            *(encode_delimited(NODE_OUTPUT, text.encode()) for text in outputs),
            encode_delimited(NODE_NAME, name.encode()),
            encode_delimited(NODE_OPERATOR, operator.encode()),
            *(encode_delimited(NODE_ATTRIBUTE, _encode_attribute(text, value)) for text, value in attributes.items()),
        )
    )


def _encode_attribute(name: str, value: int | float) -> bytes:
    if isinstance(value, int):
        number, kind = encode_integer(_ATTRIBUTE_INT, value), _INT_TYPE
    else:
        number, kind = encode_fixed32(_ATTRIBUTE_FLOAT, struct.pack("<f", value)), _FLOAT_TYPE
    return encode_delimited(_ATTRIBUTE_NAME, name.encode()) + number + encode_integer(_ATTRIBUTE_TYPE, kind)
