"""The two forms of the field `precision`: one type for the whole model, or a mapping with the types of modules."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

from trtbuild.core.values.nearest import nearest
from trtbuild.manifest.format import kinds
from trtbuild.manifest.format.kinds import SYNONYMS, invalid_value
from trtbuild.manifest.yaml_text.tree import kind_of

_NAMES: tuple[str, ...] = typing.get_args(kinds.Precision)
_EXAMPLE = '{default: float16, float32: ["*.norm"]}'


def expand(value: Any) -> Any:
    """Return `value` as a mapping: ``float16`` is short for ``{default: float16}``.

    Raises the error of `invalid_value` for an empty mapping, and for a value that is neither a precision nor a mapping."""
    if isinstance(value, dict) and value:
        return value
    if isinstance(value, str) and value in _NAMES:
        return {"default": value}
    hint = f"a mapping sets other precisions for modules: {_EXAMPLE}"
    if isinstance(value, str):
        similar = SYNONYMS.get(value.casefold()) or nearest(value, _NAMES)
        if similar in _NAMES:
            hint = f"did you mean {similar!r}?"
    raise invalid_value(f"`precision` must be one of {', '.join(_NAMES)}, not {kind_of(value)}", hint)


def check_effect(default: str, patterns: Mapping[kinds.Precision, list[str]]) -> None:
    """Raise the error of `invalid_value` if modules are listed under the default precision only.

    Such a list has no effect, so it is probably a mistake."""
    if any(patterns.values()) and not any(listed for name, listed in patterns.items() if name != default):
        raise invalid_value(
            f"`precision` lists modules under `{default}` only, and {default} is its default anyway",
            f"write the precision of the other modules in `default`, such as {_EXAMPLE}",
        )
