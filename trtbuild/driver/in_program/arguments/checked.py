"""Checks of single arguments. Each check returns the argument, or a list or dict of its items. Raises UsageError."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from trtbuild.errors import UsageError


def flag(name: str, value: Any) -> bool:
    """Return `value`, which has to be True or False."""
    if not isinstance(value, bool):
        raise wrong_value(name, "True or False", value)
    return value


def count(name: str, value: Any) -> int:
    """Return `value`, which has to be a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise wrong_value(name, "a whole number ≥ 1", value)
    return value


def text(name: str, value: Any, hint: str | None = None) -> str:
    """Return `value`, which has to be a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise wrong_value(name, "a string that is not empty" if value == "" else "a string", value, hint)
    return value


def path(name: str, value: Any) -> str | os.PathLike[str]:
    """Return `value`, which has to be a path that is not empty."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise wrong_value(name, "the path of a directory", value)
    return value


def items(name: str, value: Any, example: str) -> list[Any]:
    """Return a list of the items of `value`, which may be any iterable except a string, bytes or a mapping."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise wrong_value(name, "a list", value, f"write {name}={example}")
    return list(value)


def mapping(name: str, value: Any, example: str) -> dict[str, Any]:
    """Return `value` as a dict. Its keys have to be strings."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise wrong_value(name, "a mapping by name", value, f"write {name}={example}")
    return dict(value)


def wrong_value(name: str, allowed: str, value: Any, hint: str | None = None) -> UsageError:
    """Return the error that the argument `name` has `value`, but must be `allowed`."""
    return UsageError(f"{name} must be {allowed}, not {value!r:.60}", hint=hint)
