"""Replace attributes of modules and classes, and put the original ones back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Replacements:
    """The attributes that are replaced now."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, target: Any, name: str, value: Any) -> None:
        attributes = getattr(target, "__dict__", None)
        is_inherited = attributes is not None and name not in attributes
        # the attribute itself: getattr would turn a static method into a function
        original = getattr(target, name) if attributes is None or is_inherited else attributes[name]
        try:
            setattr(target, name, value)
        except (AttributeError, TypeError):
            return  # this type cannot be changed: only the module `mappings` finds the files that it reads
        self._undo.append(lambda: delattr(target, name) if is_inherited else setattr(target, name, original))

    def undo(self) -> None:
        """Put the original attributes back, the last replaced one first."""
        while self._undo:
            self._undo.pop()()
