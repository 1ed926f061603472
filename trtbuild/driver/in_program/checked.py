"""Arguments of a program, one by one: of the kind that they have to be, or a UsageError that names the argument."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from trtbuild.errors import UsageError


def flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise wrong(name, "True or False", value)
    return value


def count(name: str, value: Any) -> int:
    """A whole number from 1 on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise wrong(name, "a whole number ≥ 1", value)
    return value


def text(name: str, value: Any, hint: str | None = None) -> str:
    """Text that is not empty."""
    if not isinstance(value, str) or not value:
        raise wrong(name, "text", value, hint)
    return value


def path(name: str, value: Any) -> str | os.PathLike[str]:
    """A path."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise wrong(name, "the path of a directory", value)
    return value


def listed(name: str, value: Any, example: str) -> list[Any]:
    """A list, or what is like one; text is none."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise wrong(name, "a list", value, f"write {name}={example}")
    return list(value)


def mapping(name: str, value: Any, example: str) -> dict[str, Any]:
    """A mapping from text."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise wrong(name, "a mapping by name", value, f"write {name}={example}")
    return dict(value)


def wrong(name: str, allowed: str, value: Any, hint: str | None = None) -> UsageError:
    """The error for an argument that is none of what is `allowed`."""
    return UsageError(f"{name} must be {allowed}, not {value!r:.60}", hint=hint)
