"""The JSON Schema of a manifest, made from the field models, in a form that suits completion in editors."""

from __future__ import annotations

from typing import Any

from trtbuild.manifest.format.fields import BuilderFields, ManifestFields

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def manifest_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a manifest. Every call returns a new object."""
    made = _tidied(ManifestFields.model_json_schema(ref_template="#/$defs/{model}"))
    definitions = {_renamed(name): part for name, part in made.pop("$defs").items()}
    # null is a value of a builder setting. In other models it is pydantic's default of a missing field.
    for name, part in definitions.items():
        for field in part.get("properties", {}).values():
            if name != _renamed(BuilderFields.__name__) and field.get("default", 0) in (None, []):
                del field["default"]
    for field in made["properties"].values():
        if field.get("default", 0) is None:
            del field["default"]
    return {"$schema": DIALECT, "title": "trtbuild manifest", **made, "$defs": definitions}


def _renamed(name: str) -> str:
    return name.removesuffix("Fields")


def _tidied(part: Any, is_names: bool = False) -> Any:
    """A part of the schema without generated titles, with shorter names, and with one form of mappings to entries.

    `is_names` is True when the keys of `part` are names of properties or definitions, and not keywords of JSON Schema.
    """
    if isinstance(part, list):
        return [_tidied(entry) for entry in part]
    if not isinstance(part, dict):
        return part
    tidy = {key: _tidied(value, key in ("properties", "$defs") and not is_names) for key, value in part.items()}
    if is_names:
        return tidy
    tidy.pop("title", None)
    if "$ref" in tidy:
        tidy["$ref"] = _renamed(tidy["$ref"])
    if len(patterns := tidy.pop("patternProperties", {})) == 1:
        # Editors complete nothing inside patternProperties, and a name that does not match would be accepted.
        (pattern, value), names = next(iter(patterns.items())), tidy.get("propertyNames", {})
        tidy |= {"additionalProperties": value, "propertyNames": {"pattern": pattern, **names}}
    return tidy
