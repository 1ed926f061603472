"""Replace nodes and initializers of a serialized ONNX model in the protobuf wire format. All other bytes stay. Engine
workers have TensorRT and numpy, but perhaps not onnx."""

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
from trtbuild.toolchain.onnx_files.protobuf import delimited, fixed32, integer, spans

# onnx.proto
_TENSOR_EXTERNAL_DATA, _ENTRY_KEY, _ENTRY_VALUE = 13, 1, 2
_ATTRIBUTE_NAME, _ATTRIBUTE_FLOAT, _ATTRIBUTE_INT, _ATTRIBUTE_TYPE = 1, 2, 3, 20
_IS_FLOAT, _IS_INT = 1, 2


def edited(
    model: bytes,
    *,
    nodes: Mapping[int, Sequence[bytes]],
    without: Set[int] = frozenset(),
    initializers: Sequence[bytes] = (),
) -> bytes:
    """Return `model` with changes in its outer graph: `nodes` replaces the node at a position by a list of nodes,
    `without` are positions of initializers to remove, and `initializers` are added."""
    added = b"".join(delimited(GRAPH_INITIALIZER, entry) for entry in initializers)
    parts = [
        delimited(number, b"".join(_graph(value, nodes, without)) + added)
        if number == MODEL_GRAPH and isinstance(value, memoryview)
        else bytes(field)
        for number, value, field in spans(memoryview(model))
    ]
    return b"".join(parts)


def _graph(graph: memoryview, nodes: Mapping[int, Sequence[bytes]], without: Set[int]) -> Iterator[bytes]:
    node = initializer = -1
    for number, _, field in spans(graph):
        if number == GRAPH_NODE:
            node += 1
            if node in nodes:
                yield from (delimited(GRAPH_NODE, replacement) for replacement in nodes[node])
                continue
        elif number == GRAPH_INITIALIZER:
            initializer += 1
            if initializer in without:
                continue
        yield bytes(field)


def external(name: str, shape: Sequence[int], element: int) -> bytes:
    """Encode a TensorProto with external data. The location of the data is the tensor's name."""
    location = delimited(_ENTRY_KEY, b"location") + delimited(_ENTRY_VALUE, name.encode())
    return (
        b"".join(integer(TENSOR_DIMS, size) for size in shape)
        + integer(TENSOR_TYPE, element)
        + delimited(TENSOR_NAME, name.encode())
        + delimited(_TENSOR_EXTERNAL_DATA, location)
        + integer(TENSOR_LOCATION, EXTERNAL)
    )


def node(
    operator: str, name: str, inputs: Sequence[str], outputs: Sequence[str], attributes: Mapping[str, int | float]
) -> bytes:
    """Encode a NodeProto."""
    return b"".join(
        (
            *(delimited(NODE_INPUT, text.encode()) for text in inputs),
            *(delimited(NODE_OUTPUT, text.encode()) for text in outputs),
            delimited(NODE_NAME, name.encode()),
            delimited(NODE_OPERATOR, operator.encode()),
            *(delimited(NODE_ATTRIBUTE, _attribute(text, value)) for text, value in attributes.items()),
        )
    )


def _attribute(name: str, value: int | float) -> bytes:
    if isinstance(value, int):
        number, kind = integer(_ATTRIBUTE_INT, value), _IS_INT
    else:
        number, kind = fixed32(_ATTRIBUTE_FLOAT, struct.pack("<f", value)), _IS_FLOAT
    return delimited(_ATTRIBUTE_NAME, name.encode()) + number + integer(_ATTRIBUTE_TYPE, kind)
