"""The canonical encoding of values: what every key is the hash of.

Rules
1. Typed: every value starts with a one-byte tag, so ``1``, ``1.0``, ``True`` and ``"1"`` differ, and ``""`` is not null.
2. Length-prefixed: strings, bytes and containers carry their length (8 bytes, big-endian), so no two values
   run into each other.
3. Floats are their IEEE-754 binary64 bits: -0.0, infinities and every NaN are values of their own.
4. Mappings are encoded in the order of their encoded keys: the order in which they were written does not matter.
   Lists keep their order.
5. No other type is accepted. There is no fallback to ``repr``, ``str`` or pickle.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Value: TypeAlias = "bool | int | float | str | bytes | Sequence[Value] | Mapping[str, Value] | None"


def _frame(tag: bytes, body: bytes) -> bytes:
    return tag + struct.pack(">Q", len(body)) + body


def encode(value: Value) -> bytes:
    """The canonical bytes of `value`. Raises TypeError for a type that has no encoding."""
    if value is None:
        return b"N"
    if isinstance(value, bool):
        return b"T" if value else b"F"
    if isinstance(value, int):
        return _frame(b"I", str(value).encode("ascii"))
    if isinstance(value, float):
        return b"D" + struct.pack(">d", value)
    if isinstance(value, str):
        return _frame(b"S", value.encode("utf-8", "surrogateescape"))
    if isinstance(value, bytes):
        return _frame(b"B", value)
    if isinstance(value, Mapping):
        items = []
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"a mapping's keys must be strings, not {type(key).__name__}")
            items.append((encode(key), encode(item)))
        items.sort()
        return b"M" + struct.pack(">Q", len(items)) + b"".join(key + item for key, item in items)
    if isinstance(value, Sequence):
        return b"L" + struct.pack(">Q", len(value)) + b"".join(encode(item) for item in value)
    raise TypeError(f"{type(value).__name__} has no canonical encoding")


def digest(domain: str, value: Value) -> str:
    """SHA-256 (hex) of `value` under a domain tag, so that equal values of two kinds never share a digest."""
    return hashlib.sha256(encode(domain) + encode(value)).hexdigest()


def to_json(value: Value) -> object:
    """A JSON form of `value` that `from_json` turns back into an equal value: floats as bits, bytes as hex."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"$f64": struct.pack(">d", value).hex()}
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    if isinstance(value, Mapping):
        if any(key.startswith("$") for key in value):
            return {"$map": [[key, to_json(item)] for key, item in value.items()]}
        return {key: to_json(item) for key, item in value.items()}
    return [to_json(item) for item in value]


def from_json(data: object) -> Value:
    """The value that `to_json` made `data` from. Raises ValueError for anything else."""
    if data is None or isinstance(data, bool | int | str):
        return data
    if isinstance(data, list):
        return [from_json(item) for item in data]
    if isinstance(data, dict):
        if "$f64" in data and len(data) == 1:
            bits: float = struct.unpack(">d", bytes.fromhex(data["$f64"]))[0]
            return bits
        if "$bytes" in data and len(data) == 1:
            return bytes.fromhex(data["$bytes"])
        if "$map" in data and len(data) == 1:
            return {key: from_json(item) for key, item in data["$map"]}
        return {key: from_json(item) for key, item in data.items()}
    raise ValueError(f"{type(data).__name__} is no JSON form of a value")
