"""The canonical encoding of values: what every key is the hash of.

Rules
1. Typed: every value starts with a one-byte tag, so ``1``, ``1.0``, ``True`` and ``"1"`` differ, and ``""`` is not null.
2. Length-prefixed: strings, bytes and containers carry their length (8 bytes, big-endian), so no two values
   run into each other. A string is its UTF-8, a lone surrogate (an undecodable byte of a file name) among it as three
   bytes of its own: escaping it back to that byte would give two strings one encoding.
3. Floats are their IEEE-754 binary64 bits: -0.0, infinities and every NaN are values of their own.
4. Mappings are encoded in the order of their encoded keys: the order in which they were written does not matter.
   Lists keep their order.
5. No other type is accepted, subclasses (enums, numpy's scalars) among them: what they mean is not all in their
   value. There is no fallback to ``repr``, ``str`` or pickle.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Value: TypeAlias = "bool | int | float | str | bytes | Sequence[Value] | Mapping[str, Value] | None"


_length = struct.Struct(">Q").pack
_bits = struct.Struct(">d").pack


def encode(value: Value) -> bytes:
    """The canonical bytes of `value`. Raises TypeError for a type that has no encoding."""
    kind = type(value)
    if kind is str:
        return _frame(b"S", str(value).encode("utf-8", "surrogatepass"))
    if value is None:
        return b"N"
    if kind is bool:
        return b"T" if value else b"F"
    if kind is int:
        return _frame(b"I", str(value).encode("ascii"))
    if kind is float:
        return b"D" + _bits(value)
    if kind is bytes:
        return _frame(b"B", bytes(value))  # type: ignore[arg-type]
    if isinstance(value, list | tuple):
        return b"L" + _length(len(value)) + b"".join([encode(item) for item in value])
    if isinstance(value, Mapping):
        items = []
        for key, item in value.items():
            if type(key) is not str:
                raise TypeError(f"a mapping's keys must be strings, not {type(key).__name__}")
            items.append((encode(key), encode(item)))
        items.sort()
        return b"M" + _length(len(items)) + b"".join([key + item for key, item in items])
    raise TypeError(f"{kind.__name__} has no canonical encoding")


def _frame(tag: bytes, body: bytes) -> bytes:
    return tag + _length(len(body)) + body


def digest(domain: str, value: Value) -> str:
    """SHA-256 (hex) of `value` under a domain tag, so that equal values of two kinds never share a digest."""
    return hashlib.sha256(encode(domain) + encode(value)).hexdigest()


def to_json(value: Value) -> object:
    """A JSON form of `value` that `from_json` turns back into an equal value: floats as bits, bytes as hex.

    Mappings are in the order of their keys, so who reads them sees nothing that the encoding does not hold. Raises
    TypeError for a type that has no encoding.
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {"$f64": _bits(value).hex()}
    if type(value) is bytes:
        return {"$bytes": value.hex()}
    if isinstance(value, Mapping):
        items = [(key, to_json(value[key])) for key in sorted(value)]
        return {"$map": [list(item) for item in items]} if any(key[:1] == "$" for key in value) else dict(items)
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no canonical encoding")


def from_json(data: object) -> Value:
    """The value that `to_json` made `data` from. Raises ValueError for anything else."""
    if data is None or isinstance(data, bool | int | str):
        return data
    if isinstance(data, list):
        return [from_json(item) for item in data]
    if isinstance(data, dict):
        if not any(key.startswith("$") for key in data):
            return {key: from_json(item) for key, item in data.items()}
        if len(data) == 1:
            return _marked(*next(iter(data.items())))
    raise ValueError(f"{data!r:.80} is no JSON form of a value")


def _marked(mark: str, body: object) -> Value:
    if mark == "$f64" and isinstance(body, str) and len(body) == 16:
        bits: float = struct.unpack(">d", bytes.fromhex(body))[0]
        return bits
    if mark == "$bytes" and isinstance(body, str):
        return bytes.fromhex(body)
    if mark == "$map" and isinstance(body, list):
        pairs = [(key, from_json(item)) for key, item in map(_pair, body)]
        return dict(pairs)
    raise ValueError(f"{mark} with {body!r:.80} is no JSON form of a value")


def _pair(entry: object) -> tuple[str, object]:
    if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str):
        return entry[0], entry[1]
    raise ValueError(f"{entry!r:.80} is no entry of a mapping")
