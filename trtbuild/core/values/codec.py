"""Converts dataclasses to JSON and back: the jobs and results of worker processes, and the documents of ``--json``.

Rules
1. A dataclass becomes an object with its fields. A tuple or list becomes a list, and a mapping becomes an object. If a
   class has `to_json` or `from_json`, these methods are used.
2. Decoding follows the annotations of the fields. A missing field gets its default. An unknown field is an error,
   because both processes run the same version of trtbuild.
3. Numbers, strings and booleans are not changed. Values of type `Any` and `object` are not checked.
4. A field that was defined with `optional` is left out if it is None.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


#: Keys of a dataclass field's metadata. `MEMBER`: the field's name in JSON, if it is not the name in Python. `OPTIONAL`:
#: whether the JSON lacks the field if it is None (rule 4).
MEMBER, OPTIONAL = "member", "optional"


def optional(member: str | None = None) -> Any:
    """A dataclass field with the default None, which is left out of the JSON if it is None (rule 4).

    `member` is the field's name in JSON, if that name is not valid in Python."""
    return dataclasses.field(default=None, metadata={OPTIONAL: True, MEMBER: member})


def member_of(field: dataclasses.Field[Any]) -> str:
    """The name of a field in JSON."""
    return field.metadata.get(MEMBER) or field.name


def encode(value: Any) -> Any:
    """`value` as JSON (rule 1)."""
    if value is None or isinstance(value, str | int | float):
        return value
    if hasattr(value, "to_json"):
        return value.to_json()
    if dataclasses.is_dataclass(value):
        return members(value)
    if isinstance(value, Mapping):
        return {str(name): encode(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def members(value: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON, in their order (rules 1 and 4), even if its class has a method `to_json`."""
    items = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return {
        member_of(field): encode(item) for field, item in items if item is not None or OPTIONAL not in field.metadata
    }


def decode(kind: type[T], data: Any) -> T:
    """The value of type `kind` whose JSON is `data`.

    Raises TypeError, ValueError, KeyError or AttributeError if `data` is not the JSON of such a value."""
    return typing.cast(T, _decode_value(kind, data))


def _decode_value(kind: Any, data: Any) -> Any:
    if hasattr(kind, "from_json"):
        return kind.from_json(data)
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, data)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if data is None and type(None) in arguments:
            return None
        kinds = [argument for argument in arguments if argument is not type(None)]
        for candidate in kinds[:-1]:  # the first type that accepts `data` is used
            with contextlib.suppress(TypeError, ValueError, KeyError, AttributeError):
                return _decode_value(candidate, data)
        return _decode_value(kinds[-1], data)
    if origin is tuple:
        if not isinstance(data, list | tuple):
            raise TypeError(f"expected a list, not {data!r}")
        if arguments[-1] is Ellipsis:
            return tuple(_decode_value(arguments[0], item) for item in data)
        return tuple(_decode_value(argument, item) for argument, item in zip(arguments, data, strict=True))
    if origin is Sequence:
        if not isinstance(data, list | tuple):
            raise TypeError(f"expected a list, not {data!r}")
        return [_decode_value(arguments[0], item) for item in data]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {name: _decode_value(arguments[1], item) for name, item in data.items()}
    if origin is typing.Literal:
        if data not in arguments:
            raise ValueError(f"{data!r} is not one of {arguments}")
        return data
    if kind in (int, float, str, bool) and type(data) is not kind and not (kind is float and type(data) is int):
        raise TypeError(f"expected {kind.__name__}, not {data!r}")
    if kind is float and type(data) is int and abs(data) > sys.float_info.max:
        raise ValueError("the integer is too large for a float")
    return data


def _decode_dataclass(kind: Any, data: Any) -> Any:
    if not isinstance(data, Mapping):
        raise TypeError(f"expected an object for {kind.__name__}, not {data!r}")
    fields = {member_of(field): field.name for field in dataclasses.fields(kind)}
    unknown = data.keys() - fields.keys()
    if unknown:
        raise ValueError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
    type_of_field = field_types(kind)
    return kind(**{fields[name]: _decode_value(type_of_field[fields[name]], item) for name, item in data.items()})


@functools.cache
def field_types(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields, by name."""
    return typing.get_type_hints(kind)
