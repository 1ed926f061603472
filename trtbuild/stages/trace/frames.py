"""Which frames of a traceback are the user's, and errors that point there."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from trtbuild.errors import SourceError
from trtbuild.stages.trace.places import Places

#: Distributions whose frames a user does not want to see in a traceback of their model.
_OURS = frozenset({"torch", "trtbuild", "numpy"})
_MAX_FRAMES = 8
_STACK_LINE = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$', re.MULTILINE)


class Frames:
    """Reads tracebacks. File names are shown relative to `project` where they lie in it."""

    def __init__(self, places: Places, project: Path) -> None:
        self._places = places
        self._project = os.path.realpath(project)

    def shown(self, path: str) -> str:
        real = os.path.realpath(path)
        if real.startswith(self._project + os.sep):
            return os.path.relpath(real, self._project).replace(os.sep, "/")
        return path

    def user(self, tb: TracebackType | None) -> list[traceback.FrameSummary]:
        """The frames outside trtbuild, torch and the standard library, outermost first."""
        return [frame for frame in traceback.extract_tb(tb) if self._is_shown(frame.filename)]

    def deepest(self, frames: Sequence[traceback.FrameSummary]) -> tuple[str, int] | None:
        """File and line of the innermost frame of the user's own files, else of the innermost one at all."""
        own = [frame for frame in frames if self._places.is_user(frame.filename)]
        for frame in reversed(own or list(frames)):
            return self.shown(frame.filename), frame.lineno or 0
        return None

    def in_stack_trace(self, text: str | None) -> tuple[str, int] | None:
        """The innermost place of the user in a ``stack_trace`` that torch keeps at a node."""
        frames = [
            traceback.FrameSummary(match["file"], int(match["line"]), match["name"] or "", lookup_line=False)
            for match in _STACK_LINE.finditer(text or "")
            if self._is_shown(match["file"])
        ]
        return self.deepest(frames)

    def raise_from(
        self, error: BaseException, what: str, *, code: str, hint: str | None = None, fallback: dict[str, object]
    ) -> NoReturn:
        """Raise a SourceError about `error`: `what` happened, the error itself, and the user's frames.

        `fallback` is the place where no frame is the user's.
        """
        frames = self.user(error.__traceback__)
        place = self.deepest(frames)
        if isinstance(error, SyntaxError) and error.filename and self._is_shown(error.filename):
            place = (self.shown(error.filename), error.lineno or 0)
        lines = [what, f"{type(error).__name__}: {first_lines(str(error))}"]
        for frame in frames[-_MAX_FRAMES:]:
            lines.append(f"  {self.shown(frame.filename)}:{frame.lineno} in {frame.name}: {(frame.line or '').strip()}")
        where = {"file": place[0], "line": place[1]} if place else fallback
        raise SourceError("\n".join(lines), code=code, hint=hint, **where) from error  # type: ignore[arg-type]

    def _is_shown(self, filename: str) -> bool:
        place = self._places.of(filename)
        if place.owner == "distribution":
            return place.distribution not in _OURS
        return place.owner == "user"


def first_lines(text: str, count: int = 4) -> str:
    """The first lines of an error's text, without torch's advice on its own log settings."""
    lines = [line for line in text.strip().splitlines() if line.strip() and "TORCH_LOGS" not in line]
    return "\n".join(lines[:count])


def caller(places: Places, skip: Callable[[str], bool] | None = None) -> tuple[str, int] | None:
    """File and line of the nearest frame that is neither trtbuild's nor the standard library's; None without one."""
    frame = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        owner = places.of(filename).owner
        if owner in ("user", "distribution") and not (skip and skip(filename)):
            return filename, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None
