"""Read and write protobuf's wire format field by field: https://protobuf.dev/programming-guides/encoding.

The package protobuf is not used, because engine workers may not have it. Fields with integers and length-delimited fields
(texts, messages, packed numbers) are decoded. fixed32 and fixed64 fields are not decoded.
"""

from __future__ import annotations

from collections.abc import Iterator


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number and value of each field, except fixed32 and fixed64 fields. Raises ValueError as `field_spans`
    does."""
    for number, value, _ in field_spans(message):
        if value is not None:
            yield number, value


def messages(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the number and value of each length-delimited field."""
    for number, value in fields(message):
        if isinstance(value, memoryview):
            yield number, value


def field_spans(message: memoryview) -> Iterator[tuple[int, int | memoryview | None, memoryview]]:
    """Yield the number, the value (None for fixed32 and fixed64) and all bytes of each field. Joined, the bytes are
    `message`. Raises ValueError if the bytes are not a protobuf message."""
    position = 0
    while position < len(message):
        start = position
        # The three lowest bits of a tag are the wire type (0: varint, 1: fixed64, 2: length-delimited, 5: fixed32).
        # The other bits are the number of the field.
        tag, position = _read_varint(message, position)
        wire_type = tag & 7
        if wire_type == 0:
            value, position = _read_varint(message, position)
            yield tag >> 3, value, message[start:position]
            continue
        if wire_type == 2:
            length, position = _read_varint(message, position)
        elif wire_type in (1, 5):
            length = 8 if wire_type == 1 else 4
        else:
            raise ValueError("not a protobuf message")
        if position + length > len(message):
            raise ValueError("a protobuf message that is cut off")
        yield (
            tag >> 3,
            message[position : position + length] if wire_type == 2 else None,
            message[start : position + length],
        )
        position += length


def packed_integers(data: memoryview) -> Iterator[int]:
    """Yield the integers of a packed field."""
    position = 0
    while position < len(data):
        value, position = _read_varint(data, position)
        yield value


def to_signed(number: int) -> int:
    """Convert the unsigned number of the wire format to an int64."""
    return number - (1 << 64) if number >= 1 << 63 else number


def encode_integer(number: int, value: int) -> bytes:
    """Encode a field with an integer that is not negative."""
    return _encode_varint(number << 3) + _encode_varint(value)


def encode_fixed32(number: int, value: bytes) -> bytes:
    """Encode a field of four bytes, such as a float."""
    return _encode_varint(number << 3 | 5) + value


def encode_delimited(number: int, value: bytes) -> bytes:
    """Encode a field with a text or a message."""
    return _encode_varint(number << 3 | 2) + _encode_varint(len(value)) + value


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data):
            raise ValueError("a protobuf message that is cut off")
        if shift > 63:
            raise ValueError("not a protobuf message")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _encode_varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
