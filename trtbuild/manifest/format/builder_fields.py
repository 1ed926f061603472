"""The manifest's `builder` fields, made from the table of builder settings."""

from __future__ import annotations

from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import Field

from trtbuild.core.model.builder_settings import SETTINGS, BuilderSettings, Setting
from trtbuild.manifest.format import kinds


def builder_fields() -> dict[str, Any]:
    """Arguments of `pydantic.create_model`: the name of each field → its type, and its default with a description."""
    types, defaults = get_type_hints(BuilderSettings), vars(BuilderSettings())
    arguments: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        kind = _type(types[name], setting)
        # The example of tactic sources is [], because an empty list means something else than null.
        examples: list[Any] | None = [[]] if kind == kinds.TacticSources | None else None
        arguments[name] = (kind, Field(defaults[name], description=setting.description, examples=examples))
    return arguments


def _type(annotation: Any, setting: Setting) -> Any:
    """The type of a setting, with the manifest's checks of its values."""
    if type(None) in get_args(annotation):
        (kind_without_none,) = (kind for kind in get_args(annotation) if kind is not type(None))
        return _type(kind_without_none, setting) | None
    if get_origin(annotation) is tuple:
        return kinds.TacticSources
    if setting.in_bytes:
        return Annotated[kinds.Bytes, Field(ge=setting.minimum)] if setting.minimum else kinds.Bytes
    if annotation is int:
        return Annotated[int, Field(ge=setting.minimum, le=setting.maximum)]
    return annotation
