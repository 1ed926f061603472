"""A collection of problems, so that a user sees all of them at once."""

from __future__ import annotations

from trtbuild.core.model.spec import Origin
from trtbuild.errors import ManifestErrors, Problem


class Problems:
    """The problems that were found so far. Equal problems count once: several models may use one invalid profile.

    `files` are the names of the files that were looked for so far, because an edit of one of them may solve a problem."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self._problems: dict[Problem, None] = {}
        self._closed_places: set[Origin] = set()

    def add(self, origin: Origin, text: str, hint: str | None = None, *, hides_later: bool = False) -> None:
        """Add a problem. With `hides_later`, later problems at the same place are dropped, because this one causes them."""
        if origin in self._closed_places:
            return
        if hides_later:
            self._closed_places.add(origin)
        self._problems[Problem(origin.file, origin.line, origin.column, text, hint)] = None

    def __len__(self) -> int:
        return len(self._problems)

    def raise_if_any(self) -> None:
        """Raise ManifestErrors if a problem was added."""
        if self._problems:
            raise ManifestErrors(list(self._problems), self.files)


def place_text(origin: Origin) -> str:
    """``file:line:column``, to name a second place in a message."""
    return f"{origin.file}:{origin.line}:{origin.column}"
