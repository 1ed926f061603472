"""The written forms of a precision: one name for the whole model, or a mapping with the precisions of modules."""

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
    """The mapping that `value` means: ``float16`` is short for ``{default: float16}``."""
    if isinstance(value, dict) and value:
        return value
    if isinstance(value, str) and value in _NAMES:
        return {"default": value}
    similar = SYNONYMS.get(str(value).casefold()) or nearest(str(value), _NAMES)
    if similar in _NAMES and isinstance(value, str):
        hint = f"did you mean {similar!r}?"
    else:
        hint = f"a mapping sets other precisions for modules: {_EXAMPLE}"
    raise invalid_value(f"`precision` must be one of {', '.join(_NAMES)}, not {kind_of(value)}", hint)


def check_effect(default: str, patterns: Mapping[kinds.Precision, list[str]]) -> None:
    """Raise an error for a mapping that lists modules under its own default only."""
    if any(patterns.values()) and not any(listed for name, listed in patterns.items() if name != default):
        raise invalid_value(
            f"`precision` lists modules under `{default}` only, and {default} is its default anyway",
            f"write the precision of the other modules in `default`, such as {_EXAMPLE}",
        )
