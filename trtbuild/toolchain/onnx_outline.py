"""The few things that the toolchain wants to know of a serialized ONNX model, read from the protobuf wire format.

Engine workers have TensorRT and numpy, and need not have onnx; and a model whose weights are elsewhere is small, so
reading it twice costs nothing. Field numbers are those of onnx.proto (they never change):
ModelProto.graph 7; GraphProto.node 1, initializer 5; NodeProto.op_type 4, name 3; TensorProto.dims 1, data_type 2,
name 8, data_location 14. The wire format is https://protobuf.dev/programming-guides/encoding.
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
class Outline:
    """The outer graph's nodes as (name, operator), in order, and its external weights, in order."""

    nodes: tuple[tuple[str, str], ...]
    weights: tuple[ExternalWeight, ...]


def outline(model: bytes) -> Outline:
    """Raises ValueError when `model` is not a protobuf message, or a weight has a type of unknown size."""
    nodes: list[tuple[str, str]] = []
    weights: list[ExternalWeight] = []
    for field, graph in _fields(memoryview(model)):
        if field != 7 or not isinstance(graph, memoryview):
            continue
        for part, value in _fields(graph):
            if part == 1 and isinstance(value, memoryview):
                texts = {number: bytes(text).decode() for number, text in _fields(value) if number in (3, 4)}  # type: ignore[arg-type]
                nodes.append((texts.get(3, ""), texts.get(4, "")))
            elif part == 5 and isinstance(value, memoryview):
                weight = _external_weight(value)
                if weight is not None:
                    weights.append(weight)
    return Outline(tuple(nodes), tuple(weights))


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
