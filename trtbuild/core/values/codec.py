"""Dataclasses as JSON, and back: one codec for the jobs and results that pass between processes.

Rules
1. A dataclass is an object of its fields, a tuple a list, a mapping an object. A class with a `to_json` or `from_json` of
   its own is encoded by that.
2. Decoding follows the annotations of the fields. A field that is absent has its default; a field that is not known is an
   error, for both sides are of one version.
3. Numbers, strings and booleans pass as they are. `Any` and `object` pass without a look.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def encode(value: Any) -> Any:
    """`value` as JSON (rule 1)."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if dataclasses.is_dataclass(value):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): encode(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [encode(part) for part in value]
    return value


def decode(kind: type[T], data: Any) -> T:
    """The value of type `kind` that `data` is the JSON of. Raises TypeError, ValueError or KeyError for anything else."""
    return typing.cast(T, _decoded(kind, data))


def _decoded(kind: Any, data: Any) -> Any:
    if hasattr(kind, "from_json"):
        return kind.from_json(data)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, data)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if data is None and type(None) in arguments:
            return None
        kinds = [one for one in arguments if one is not type(None)]
        for one in kinds[:-1]:  # the first that it is
            with contextlib.suppress(TypeError, ValueError, KeyError):
                return _decoded(one, data)
        return _decoded(kinds[-1], data)
    if origin is tuple:
        if not isinstance(data, list | tuple):
            raise TypeError(f"a list is needed, not {data!r}")
        if arguments[-1] is Ellipsis:
            return tuple(_decoded(arguments[0], part) for part in data)
        return tuple(_decoded(one, part) for one, part in zip(arguments, data, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {name: _decoded(arguments[1], part) for name, part in data.items()}
    if origin is typing.Literal:
        if data not in arguments:
            raise ValueError(f"{data!r} is not one of {arguments}")
        return data
    if kind in (int, float, str, bool) and type(data) is not kind and not (kind is float and type(data) is int):
        raise TypeError(f"{kind.__name__} is needed, not {data!r}")
    return data


def _dataclass(kind: Any, data: Any) -> Any:
    if not isinstance(data, Mapping):
        raise TypeError(f"an object is needed for {kind.__name__}, not {data!r}")
    hints = _hints(kind)
    unknown = data.keys() - hints.keys()
    if unknown:
        raise ValueError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    return kind(**{name: _decoded(hints[name], part) for name, part in data.items()})


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)
