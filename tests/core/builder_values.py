"""For each builder setting, a value that differs from its default."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin, get_type_hints

from trtbuild.core.model.builder_settings import SETTINGS, BuilderSettings


def other_value(name: str) -> Any:
    """Return a value that a manifest accepts for the setting `name`, and that is not its default."""
    default, annotation = getattr(BuilderSettings(), name), get_type_hints(BuilderSettings)[name]
    if get_origin(annotation) is Literal:
        return next(choice for choice in get_args(annotation) if choice != default)
    kind = next(kind for kind in (get_args(annotation) or (annotation,)) if kind is not type(None))  # X of `X | None`
    if kind is bool:
        return not default
    if get_origin(kind) is tuple:
        return ("jit_convolutions",)  # a tactic source
    if SETTINGS[name].in_bytes:
        return 1 << 20
    return SETTINGS[name].minimum if default is None else default + 1
