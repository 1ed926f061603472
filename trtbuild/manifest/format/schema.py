"""The JSON Schema of a manifest, made from the field models, in a form that suits completion in editors."""

from __future__ import annotations

from typing import Any

from trtbuild.manifest.format.fields import BuilderFields, ManifestFields

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def manifest_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a manifest. Every call returns a new object."""
    schema = _tidied(ManifestFields.model_json_schema(ref_template="#/$defs/{model}"))
    definitions = {_renamed(name): part for name, part in schema.pop("$defs").items()}
    # For a builder setting, null is a value. In other models, null is pydantic's default of a missing field.
    for name, part in definitions.items():
        for field in part.get("properties", {}).values():
            if name != _renamed(BuilderFields.__name__) and field.get("default", 0) in (None, []):
                del field["default"]
    for field in schema["properties"].values():
        if field.get("default", 0) is None:
            del field["default"]
    return {"$schema": DIALECT, "title": "trtbuild manifest", **schema, "$defs": definitions}


def _renamed(name: str) -> str:
    return name.removesuffix("Fields")


def _tidied(part: Any, is_names: bool = False) -> Any:
    """A part of the schema without generated titles, with shorter names, and without `patternProperties`.

    `is_names` is True if the keys of `part` are names of properties or definitions, and not keywords of JSON Schema.
    """
    if isinstance(part, list):
        return [_tidied(entry) for entry in part]
    if not isinstance(part, dict):
        return part
    tidied = {key: _tidied(value, key in ("properties", "$defs") and not is_names) for key, value in part.items()}
    if is_names:
        return tidied
    tidied.pop("title", None)
    if "$ref" in tidied:
        tidied["$ref"] = _renamed(tidied["$ref"])
    if len(patterns := tidied.pop("patternProperties", {})) == 1:
        # Inside patternProperties, editors do not complete names, and a name that does not match would be accepted.
        (pattern, value), names = next(iter(patterns.items())), tidied.get("propertyNames", {})
        tidied |= {"additionalProperties": value, "propertyNames": {"pattern": pattern, **names}}
    return tidied
