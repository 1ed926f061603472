"""The JSON Schema of a manifest, made from the field models, in the form that editors complete best with."""

from __future__ import annotations

from typing import Any

from trtbuild.manifest.format.fields import BuilderFields, ManifestFields

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def manifest_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a manifest. Every call gives a fresh one."""
    made = _tidied(ManifestFields.model_json_schema(ref_template="#/$defs/{model}"))
    definitions = {_renamed(name): part for name, part in made.pop("$defs").items()}
    # null means something to a builder setting; elsewhere it is pydantic's way to say "not there".
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
    """Without generated titles, with our names of definitions, and with one form for mappings from names to entries.

    `is_names` is whether the keys of `part` are names (of properties, definitions) and not words of JSON Schema.
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
        # Editors offer nothing inside patternProperties, and a name that does not fit would pass.
        (pattern, value), names = next(iter(patterns.items())), tidy.get("propertyNames", {})
        tidy |= {"additionalProperties": value, "propertyNames": {"pattern": pattern, **names}}
    return tidy
