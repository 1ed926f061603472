"""JSON Schemas (draft 2020-12) of dataclasses, for the JSON that `codec.encode` writes.

Rules
1. Each dataclass is one definition with the name of the class. Its description is the docstring. Unknown members are
   allowed, because a later version may add members.
2. A field that was defined with `codec.optional` may be left out, and is never null. All other fields are required.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from trtbuild.core.values.codec import OPTIONAL, field_types, member_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_TYPE_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def schema_of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type. The schemas of dataclasses in it are added to `definitions`."""
    if kind in _TYPE_NAMES:
        return {"type": _TYPE_NAMES[kind]}
    if kind in (Any, object):
        return {}
    if dataclasses.is_dataclass(kind):
        return {"$ref": f"#/$defs/{_add_definition(kind, definitions)}"}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [schema_of(argument, definitions) for argument in arguments]}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema_of(arguments[1], definitions)}
    if origin is tuple and arguments[-1] is not Ellipsis:
        parts = [schema_of(argument, definitions) for argument in arguments]
        return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": schema_of(arguments[0], definitions)}
    raise TypeError(f"{kind!r} has no JSON Schema")


def _add_definition(kind: Any, definitions: dict[str, Any]) -> str:
    name: str = kind.__name__
    if name not in definitions:
        fields, type_of_field = dataclasses.fields(kind), field_types(kind)
        definitions[name] = {
            "description": inspect.cleandoc(kind.__doc__ or ""),
            "type": "object",
            "properties": {
                member_of(field): schema_of(_type_if_present(field, type_of_field), definitions) for field in fields
            },
            "required": [member_of(field) for field in fields if OPTIONAL not in field.metadata],
        }
    return name


def _type_if_present(field: dataclasses.Field[Any], type_of_field: Mapping[str, Any]) -> Any:
    """The type of a field's value in JSON: for an optional field, its type without None (rule 2)."""
    kind = type_of_field[field.name]
    if OPTIONAL not in field.metadata:
        return kind
    return typing.Union[tuple(argument for argument in typing.get_args(kind) if argument is not type(None))]  # noqa: UP007
