"""The JSON Schema of a manifest, made from the pydantic models of its fields. Editors use it for completion."""

from __future__ import annotations

from typing import Any

from trtbuild.manifest.format.fields import BuilderFields, ManifestFields

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def manifest_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a manifest. Every call returns a new object."""
    schema = _tidy(ManifestFields.model_json_schema(ref_template="#/$defs/{model}"))
    definitions = {_without_suffix(name): part for name, part in schema.pop("$defs").items()}
    # A builder setting may be null. For other fields, null and [] mean only that the field is missing, so they are not
    # shown as defaults.
    for name, part in definitions.items():
        for field in part.get("properties", {}).values():
            if name != _without_suffix(BuilderFields.__name__) and field.get("default", 0) in (None, []):
                del field["default"]
    for field in schema["properties"].values():
        if field.get("default", 0) is None:
            del field["default"]
    return {"$schema": DIALECT, "title": "trtbuild manifest", **schema, "$defs": definitions}


def _without_suffix(name: str) -> str:
    return name.removesuffix("Fields")


def _tidy(part: Any, keys_are_names: bool = False) -> Any:
    """A part of the schema without pydantic's titles, with shorter names, and without `patternProperties`.

    If `keys_are_names`, the keys of `part` are names of properties or definitions. Otherwise they are JSON Schema keywords.
    """
    if isinstance(part, list):
        return [_tidy(entry) for entry in part]
    if not isinstance(part, dict):
        return part
    tidied = {key: _tidy(value, key in ("properties", "$defs") and not keys_are_names) for key, value in part.items()}
    if keys_are_names:
        return tidied
    tidied.pop("title", None)
    if "$ref" in tidied:
        tidied["$ref"] = _without_suffix(tidied["$ref"])
    if len(patterns := tidied.pop("patternProperties", {})) == 1:
        # Editors do not complete names inside `patternProperties`, and it accepts names that do not match the pattern.
        (pattern, value), names = next(iter(patterns.items())), tidied.get("propertyNames", {})
        tidied |= {"additionalProperties": value, "propertyNames": {"pattern": pattern, **names}}
    return tidied
