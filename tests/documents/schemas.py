"""Validators for documents and events. A validator refuses fields that its schema does not have."""

from __future__ import annotations

import functools
from typing import Any

from jsonschema import Draft202012Validator

from trtbuild.cli.commands import documents


@functools.cache
def validator(kind: str) -> Draft202012Validator:
    """The cached validator of one type, such as ``Build``.

    `jsonschema.validate` would check the whole schema at each call."""
    return Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": _definitions()})


@functools.cache
def _definitions() -> Any:
    schema = _without_other_fields(documents.schema())
    Draft202012Validator.check_schema(schema)
    return schema["$defs"]


def _without_other_fields(schema: Any) -> Any:
    """Return the schema with ``additionalProperties: false`` for every object with required fields."""
    if isinstance(schema, dict):
        parts = {name: _without_other_fields(part) for name, part in schema.items()}
        return {**parts, "additionalProperties": False} if "required" in schema and "properties" in schema else parts
    return [_without_other_fields(part) for part in schema] if isinstance(schema, list) else schema
