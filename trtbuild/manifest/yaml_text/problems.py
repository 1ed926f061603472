"""Collecting problems, so that a person sees all of them at once."""

from __future__ import annotations

from trtbuild.core.model.spec import Origin
from trtbuild.errors import ManifestErrors, Problem


class Problems:
    """The problems found so far. Equal ones count once: several models may share a bad profile."""

    def __init__(self) -> None:
        self._found: dict[Problem, None] = {}
        self._settled: set[Origin] = set()

    def add(self, origin: Origin, text: str, hint: str | None = None, *, alone: bool = False) -> None:
        """Add a problem. One that stands `alone` hides what is found later at its very place: it would only follow."""
        if origin in self._settled:
            return
        if alone:
            self._settled.add(origin)
        self._found[Problem(origin.file, origin.line, origin.column, text, hint)] = None

    def __len__(self) -> int:
        return len(self._found)

    def raise_if_any(self) -> None:
        """Raises ManifestErrors with everything that was added."""
        if self._found:
            raise ManifestErrors(list(self._found))


def place(origin: Origin) -> str:
    """``file:line:column`` of a second place, inside a message."""
    return f"{origin.file}:{origin.line}:{origin.column}"
