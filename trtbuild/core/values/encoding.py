"""The canonical encoding of values. Every key is a hash of such an encoding.

Rules
1. The encoding is typed: every value starts with a one-byte tag. So ``1``, ``1.0``, ``True`` and ``"1"`` differ, and so
   do ``""`` and null.
2. The encoding is length-prefixed: integers, strings, bytes and containers have their length after the tag (8 bytes,
   big-endian). So the end of a value is always clear. A string is encoded as UTF-8.
   In a file name that is not UTF-8, Python replaces each invalid byte by a lone surrogate. A lone surrogate is encoded as
   three bytes, because otherwise two strings could have the same encoding.
3. Floats are encoded by their IEEE-754 binary64 bits. So -0.0 and 0.0 differ, and NaNs with different bits differ.
4. Mappings are encoded in the order of their encoded keys, so their insertion order does not matter.
5. Other types are refused, without a fallback to ``repr``, ``str`` or pickle. Subclasses of scalar types, such as enums
   and NumPy's scalars, are refused, too, because their value is only a part of their meaning.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

Value: TypeAlias = "bool | int | float | str | bytes | Sequence[Value] | Mapping[str, Value] | None"


_HEX64 = re.compile(r"[0-9a-f]{64}")

_pack_length = struct.Struct(">Q").pack
_pack_float = struct.Struct(">d").pack

#: The encodings of booleans and null.
_CONSTANTS: Mapping[object, bytes] = {None: b"N", True: b"T", False: b"F"}
#: The encodings of texts shorter than this are cached. A longer text rarely occurs twice.
_SHORT_TEXT_LENGTH = 160


class Shared(dict[str, "Value"]):
    """A mapping that is part of many recipes. It must not be changed, because its encoding and JSON text are computed
    once."""

    __slots__ = ("encoding", "text")

    encoding: bytes
    text: str


def encode(value: Value) -> bytes:
    """The canonical bytes of `value`. Raises TypeError for a type that has no encoding."""
    kind = type(value)
    if kind is str:
        return _encode_short_text(value) if len(value) < _SHORT_TEXT_LENGTH else _encode_text(value)  # type: ignore[arg-type]
    if kind is dict:
        return _encode_mapping(value)  # type: ignore[arg-type]
    if kind is list or kind is tuple:
        return _encode_sequence(value)  # type: ignore[arg-type]
    if kind is Shared:
        return _encode_shared(value)  # type: ignore[arg-type]
    if value is None or kind is bool:
        return _CONSTANTS[value]
    if kind is int:
        body = str(value).encode("ascii")
        return b"I" + _pack_length(len(body)) + body
    if kind is float:
        return b"D" + _pack_float(value)
    if kind is bytes:
        return b"B" + _pack_length(len(value)) + value  # type: ignore[arg-type,operator]
    if isinstance(value, list | tuple):
        return _encode_sequence(value)
    if isinstance(value, Mapping):
        return _encode_mapping(value)
    raise TypeError(f"{kind.__name__} has no canonical encoding")


def _encode_shared(value: Shared) -> bytes:
    try:
        return value.encoding
    except AttributeError:
        value.encoding = _encode_mapping(value)
        return value.encoding


def encode_list(count: int, items: bytes) -> bytes:
    """The encoding of a list with `count` items. `items` are the encodings of the items, joined."""
    return b"L" + _pack_length(count) + items


def _encode_text(value: str) -> bytes:
    body = value.encode("utf-8", "surrogatepass")
    return b"S" + _pack_length(len(body)) + body


#: Cached, because names of parts and digests occur in many recipes.
_encode_short_text = lru_cache(maxsize=1 << 13)(_encode_text)


def _encode_sequence(value: Sequence[Value]) -> bytes:
    items = [
        _encode_short_text(item) if type(item) is str and len(item) < _SHORT_TEXT_LENGTH else encode(item)
        for item in value
    ]
    return encode_list(len(items), b"".join(items))


def _encode_mapping(value: Mapping[str, Value]) -> bytes:
    items = []
    for key, item in value.items():
        if type(key) is not str:
            raise TypeError(f"a mapping's keys must be strings, not {type(key).__name__}")
        items.append((_encode_short_text(key) if len(key) < _SHORT_TEXT_LENGTH else _encode_text(key), encode(item)))
    items.sort()
    return b"M" + _pack_length(len(items)) + b"".join([part for pair in items for part in pair])


def digest(kind: str, value: Value) -> str:
    """SHA-256 (hex) of `kind` and `value`. `kind` names the kind of value, such as ``trtbuild.chunks/1``.

    So equal values of two kinds have different digests."""
    return hashlib.sha256(encode(kind) + encode(value)).hexdigest()


def is_digest(text: object) -> bool:
    """Whether `text` is a SHA-256 as 64 lower-case hex digits."""
    return isinstance(text, str) and _HEX64.fullmatch(text) is not None


def to_json(value: Value) -> object:
    """The JSON form of `value`: a float becomes its bits in hex, and bytes become hex.

    `from_json` converts it back. Mappings are sorted by key, so equal values have equal JSON. Raises TypeError for a type
    that has no encoding.
    """
    kind = type(value)
    if kind is str or value is None or kind is int or kind is bool:
        return value
    if kind is list or kind is tuple:
        return [item if type(item) is str else to_json(item) for item in value]  # type: ignore[union-attr]
    if kind is float:
        return {"$f64": _pack_float(value).hex()}
    if kind is bytes:
        return {"$bytes": value.hex()}  # type: ignore[union-attr]
    if isinstance(value, dict) or isinstance(value, Mapping):  # noqa: SIM101 (the check for dict is much faster)
        items = {key: to_json(value[key]) for key in sorted(value)}
        if "$" in "".join(key[:1] for key in items):  # a key begins with $, as ``$f64`` does
            return {"$map": [[key, item] for key, item in items.items()]}
        return items
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no canonical encoding")


def to_json_in_order(value: Value) -> object:
    """Another JSON form of `value`, in which mappings keep their order. `from_json` converts it back, too."""
    if isinstance(value, Mapping):
        items = {key: to_json_in_order(item) for key, item in value.items()}
        if list(items) == sorted(items) and not any(key.startswith("$") for key in items):
            return items
        return {"$map": [[key, item] for key, item in items.items()]}
    if isinstance(value, list | tuple):
        return [to_json_in_order(item) for item in value]
    return to_json(value)


def key_order(value: Value) -> list[Value]:
    """The keys of all mappings in `value`, in their order: a list for each mapping, outer mappings first. Empty if the
    keys of each mapping are sorted. `encode` leaves out this order."""
    orders = [*_keys_of_mappings(value)]
    return [] if all(keys == sorted(keys) for keys in orders) else [*orders]


def _keys_of_mappings(value: Value) -> Iterator[list[str]]:
    if isinstance(value, Mapping):
        yield list(value)
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _keys_of_mappings(item)


def json_text(value: Value) -> str:
    """The JSON form of `value` as text. Equal values have equal texts. Raises TypeError, as `to_json` does."""
    if type(value) is str:
        return _quoted(value)
    if type(value) is Shared:
        try:
            return value.text
        except AttributeError:
            value.text = _dumps(to_json(value))
            return value.text
    if type(value) is dict and Shared in map(type, value.values()):
        return _text_with_shared(value)
    return _dumps(to_json(value))


def _text_with_shared(value: Mapping[str, Value]) -> str:
    """`json_text` of a mapping that has `Shared` mappings among its values."""
    if "$" in "".join(key[:1] for key in value):
        return _dumps(to_json(value))
    return "{" + ",".join([f"{_quoted(key)}:{json_text(value[key])}" for key in sorted(value)]) + "}"


_dumps = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_quoted = json.encoder.encode_basestring_ascii


def from_json(data: object) -> Value:
    """The inverse of `to_json`. Raises ValueError if `data` has another structure."""
    if data is None or isinstance(data, bool | int | str):
        return data
    if isinstance(data, list):
        return [from_json(item) for item in data]
    if isinstance(data, dict):
        if not any(key.startswith("$") for key in data):
            return {key: from_json(item) for key, item in data.items()}
        if len(data) == 1:
            return _decode_marked(*next(iter(data.items())))
    raise ValueError(f"{data!r:.80} is not the JSON form of a value")


def _decode_marked(mark: str, body: object) -> Value:
    if mark == "$f64" and isinstance(body, str):
        bits = bytes.fromhex(body)  # fromhex ignores spaces, so both lengths are checked
        if len(body) == 16 and len(bits) == 8:
            number: float = struct.unpack(">d", bits)[0]
            return number
    if mark == "$bytes" and isinstance(body, str):
        return bytes.fromhex(body)
    if mark == "$map" and isinstance(body, list):
        pairs = [(key, from_json(item)) for key, item in map(_pair, body)]
        return dict(pairs)
    raise ValueError(f"{mark} with {body!r:.80} is not the JSON form of a value")


def _pair(entry: object) -> tuple[str, object]:
    if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str):
        return entry[0], entry[1]
    raise ValueError(f"{entry!r:.80} is not an entry of a mapping")
