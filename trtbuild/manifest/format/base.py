"""The base class of the pydantic models that have the fields of a manifest, and a helper for their JSON Schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict


class Fields(BaseModel):
    """The base class. An unknown field, or a value of another type, is an error."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def shorthand(field: str) -> Callable[[dict[str, Any]], None]:
    """A value for `json_schema_extra`: the schema accepts the value of `field` alone in place of the whole mapping."""

    def add(schema: dict[str, Any]) -> None:
        mapping = dict(schema)
        schema.clear()
        alone = {
            key: part for key, part in mapping["properties"][field].items() if key not in ("description", "default")
        }
        schema["anyOf"] = [alone, mapping]

    return add
