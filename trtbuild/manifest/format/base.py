"""The base class of the field models, and a helper for their JSON Schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict


class Fields(BaseModel):
    """The base of the pydantic models for manifest fields: an unknown field or a value of another type is an error."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def shorthand(field: str) -> Callable[[dict[str, Any]], None]:
    """A value for `json_schema_extra`: in the schema, the value of `field` alone is a short form of the mapping."""

    def add(schema: dict[str, Any]) -> None:
        mapping = dict(schema)
        schema.clear()
        alone = {
            key: part for key, part in mapping["properties"][field].items() if key not in ("description", "default")
        }
        schema["anyOf"] = [alone, mapping]

    return add
