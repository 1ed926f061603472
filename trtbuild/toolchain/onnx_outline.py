"""The few things that the toolchain wants to know of a serialized ONNX model, read from the protobuf wire format.

Engine workers have TensorRT and numpy, and need not have onnx; and a model whose weights are elsewhere is small, so
reading it twice costs nothing. Field numbers are those of onnx.proto (they never change):
ModelProto.graph 7; GraphProto.node 1, initializer 5, input 11, output 12; NodeProto.input 1, output 2, name 3,
op_type 4; TensorProto.dims 1, data_type 2, name 8, data_location 14; ValueInfoProto.name 1, type 2;
TypeProto.tensor_type 1; TypeProto.Tensor.elem_type 1. The wire format is https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

#: TensorProto.DataType → bytes of one element, for the types that torch weights have.
_ELEMENT_BYTES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 14: 8, 15: 16, 16: 2}
_EXTERNAL = 1


@dataclass(frozen=True)
class ExternalWeight:
    """An initializer whose data the model does not hold."""

    name: str
    size_bytes: int


@dataclass(frozen=True)
class Node:
    """A node of the outer graph."""

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Outline:
    """The outer graph: its nodes and external weights in order, and the ONNX element type of each input and output."""

    nodes: tuple[Node, ...]
    weights: tuple[ExternalWeight, ...]
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]


def outline(model: bytes) -> Outline:
    """Raises ValueError when `model` is not a protobuf message, or a weight has a type of unknown size."""
    nodes: list[Node] = []
    weights: list[ExternalWeight] = []
    values: dict[int, list[tuple[str, int]]] = {11: [], 12: []}
    for field, graph in _messages(memoryview(model)):
        if field != 7:
            continue
        for part, value in _messages(graph):
            if part == 1:
                nodes.append(_node(value))
            elif part == 5:
                weight = _external_weight(value)
                if weight is not None:
                    weights.append(weight)
            elif part in values:
                values[part].append(_value(value))
    return Outline(tuple(nodes), tuple(weights), tuple(values[11]), tuple(values[12]))


def _node(message: memoryview) -> Node:
    texts: dict[int, list[str]] = {1: [], 2: [], 3: [], 4: []}
    for number, text in _messages(message):
        if number in texts:
            texts[number].append(bytes(text).decode())
    return Node("".join(texts[3]), "".join(texts[4]), tuple(texts[1]), tuple(texts[2]))


def _value(message: memoryview) -> tuple[str, int]:
    name, element = "", 0
    for field, part in _messages(message):
        if field == 1:
            name = bytes(part).decode()
        elif field == 2:
            for kind, tensor in _messages(part):
                if kind == 1:
                    element = next((value for number, value in _fields(tensor) if number == 1), 0)  # type: ignore[assignment]
    return name, element


def _messages(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    for field, value in _fields(message):
        if isinstance(value, memoryview):
            yield field, value


def _external_weight(tensor: memoryview) -> ExternalWeight | None:
    dims: list[int] = []
    name, data_type, location = "", 0, 0
    for field, value in _fields(tensor):
        if field == 1:
            dims += [value] if isinstance(value, int) else list(_packed(value))
        elif field == 2 and isinstance(value, int):
            data_type = value
        elif field == 8 and isinstance(value, memoryview):
            name = bytes(value).decode()
        elif field == 14 and isinstance(value, int):
            location = value
    if location != _EXTERNAL:
        return None
    if data_type not in _ELEMENT_BYTES:
        raise ValueError(f"weight {name} has ONNX data type {data_type}, whose size is not known")
    return ExternalWeight(name, math.prod(dims) * _ELEMENT_BYTES[data_type])


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        wire = tag & 7
        if wire == 0:
            value, position = _varint(message, position)
            yield tag >> 3, value
            continue
        if wire == 2:
            length, position = _varint(message, position)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError("not a protobuf message")
        if position + length > len(message):
            raise ValueError("a protobuf message that is cut off")
        if wire == 2:
            yield tag >> 3, message[position : position + length]
        position += length


def _packed(data: memoryview) -> Iterator[int]:
    position = 0
    while position < len(data):
        value, position = _varint(data, position)
        yield value


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError("a protobuf message that is cut off")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
