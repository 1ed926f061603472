"""Reads and checks the fields of an untrusted JSON document. Each function raises InvalidIndex if a check fails.

`checked_expression` may also raise ValueError, TypeError or RecursionError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trtbuild.core.values.element_types import ELEMENT_TYPES
from trtbuild.core.values.expressions import Expression, evaluate, freeze, symbols_of


class InvalidIndex(Exception):
    """The index of a package breaks a rule. The text describes the problem."""


def checked_expression(value: Any, dims: int) -> Expression:
    """The size expression in `value`. Its symbols must be numbers below `dims`, the number of dynamic dimensions."""
    if type(value) is int:
        return value
    expect(_has_operators_and_operands(value), f"{value!r:.80} is not a size")
    expect(all(0 <= symbol < dims for symbol in symbols_of(value)), f"{value!r:.80} has a symbol without a dim")
    if not _depends_on_data(value):
        try:
            evaluate(value, [1] * dims)
        except ValueError as error:
            # A valid expression may raise these two errors for the size 1, although it has a value for other sizes.
            expect("by zero" in str(error) or "is not a size" in str(error), f"{value!r:.80} is not a size: {error}")
    return freeze(value)


def _has_operators_and_operands(value: Any) -> bool:
    """Whether `value` is an integer, or a list of an operator's name and operands of this form."""
    return type(value) is int or (
        isinstance(value, list)
        and bool(value)
        and isinstance(value[0], str)
        and all(map(_has_operators_and_operands, value[1:]))
    )


def _depends_on_data(value: Any) -> bool:
    return isinstance(value, list) and (value[0] == "data" or any(_depends_on_data(part) for part in value[1:]))


def mapping_field(entry: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """The mapping in a field that must not be missing."""
    return _checked_field(entry, field, lambda value: isinstance(value, dict), "a mapping")  # type: ignore[no-any-return]


def list_field(entry: Mapping[str, Any], field: str) -> list[Any]:
    """The list in a field that must not be missing."""
    return _checked_field(entry, field, lambda value: isinstance(value, list), "a list")  # type: ignore[no-any-return]


def text_field(entry: Mapping[str, Any], field: str) -> str:
    """The non-empty text in a field that must not be missing."""
    return _checked_field(entry, field, lambda value: isinstance(value, str) and bool(value), "text")  # type: ignore[no-any-return]


def optional_list(entry: Mapping[str, Any], field: str) -> list[Any]:
    """The list in a field that may be missing; empty without the field."""
    return list_field(entry, field) if field in entry else []


def optional_flag(entry: Mapping[str, Any], field: str) -> bool:
    """The boolean in a field that may be missing; False without the field."""
    value = entry.get(field, False)
    expect(isinstance(value, bool), f"{field} is neither true nor false")
    return bool(value)


def _checked_field(entry: Mapping[str, Any], field: str, is_valid: Callable[[Any], bool], kind: str) -> Any:
    expect(isinstance(entry, dict) and field in entry, f"the field `{field}` is missing")
    expect(is_valid(entry[field]), f"the field `{field}` is not {kind}")
    return entry[field]


def checked_size(value: Any) -> int:
    """`value`, if it is an integer that is not negative."""
    expect(type(value) is int and value >= 0, f"{value!r:.40} is not a size")
    return int(value)


def checked_dtype(value: Any) -> str:
    """`value`, if it is the name of an element type."""
    expect(isinstance(value, str) and value in ELEMENT_TYPES, f"{value!r:.40} is not an element type")
    return str(value)


def expect(condition: bool, text: str) -> None:
    """Raise InvalidIndex with `text` if the condition is false."""
    if not condition:
        raise InvalidIndex(text)
