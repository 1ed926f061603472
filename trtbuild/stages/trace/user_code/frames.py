"""Find the frames of user code in a traceback, and raise errors that point there."""

from __future__ import annotations

import inspect
import os
import re
import sys
import threading
import traceback
from collections.abc import Sequence
from itertools import dropwhile, groupby
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

from trtbuild.errors import SourceError
from trtbuild.stages.trace.user_code.advice import advice, error_text
from trtbuild.stages.trace.user_code.owners import FileOwners

#: Distributions whose frames are not shown in the traceback of an error.
_HIDDEN_DISTRIBUTIONS = frozenset({"torch", "trtbuild", "numpy"})
#: An error shows at most this many lines of frames, the innermost ones.
_MAX_FRAMES = 8
#: Longer lines of an error's text are shortened to this many characters.
_MAX_LINE_LENGTH = 400
_LOG_ADVICE = re.compile(r"TORCH_LOGS|TORCHDYNAMO_")
_STACK_LINE = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$', re.MULTILINE)


class Frames:
    """Reads tracebacks. In messages, the names of files in `project` are relative to it."""

    def __init__(self, owners: FileOwners, project: Path) -> None:
        self._owners = owners
        self._project = os.path.realpath(project)

    def shown_path(self, path: str) -> str:
        """The name of a file as messages show it."""
        resolved_path = os.path.realpath(path)
        if resolved_path.startswith(self._project + os.sep):
            return os.path.relpath(resolved_path, self._project).replace(os.sep, "/")
        return path

    def user_frames(self, tb: TracebackType | None) -> list[traceback.FrameSummary]:
        """The frames of a traceback that messages show (`is_shown`), outermost first. For example, messages show no frames
        of trtbuild, torch, numpy or the standard library."""
        return [frame for frame in traceback.extract_tb(tb) if self.is_shown(frame.filename)]

    def definition_place(self, function: object) -> dict[str, Any]:
        """``file=`` and ``line=`` for an error about a function; empty if the function is not user code."""
        code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
        if code is None or not self._owners.is_user(code.co_filename):
            return {}
        return {"file": self.shown_path(code.co_filename), "line": code.co_firstlineno}

    def innermost_place(self, frames: Sequence[traceback.FrameSummary]) -> tuple[str, int] | None:
        """File and line of the innermost frame in the user's files, or else of the innermost frame; None if `frames` is
        empty."""
        own_frames = [frame for frame in frames if self._owners.is_user(frame.filename)]
        for frame in reversed(own_frames or list(frames)):
            return self.shown_path(frame.filename), frame.lineno or 0
        return None

    def place_between(self, frame: FrameType | None, outermost: FrameType) -> tuple[str, int] | None:
        """The `innermost_place` of `frame` and its callers, without `outermost` and the callers of `outermost`."""
        shown: list[traceback.FrameSummary] = []
        while frame is not None and frame is not outermost:
            if self.is_shown(frame.f_code.co_filename):
                shown.insert(0, traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, "", lookup_line=False))
            frame = frame.f_back
        return self.innermost_place(shown)

    def place_in_stack_trace(self, text: str | None) -> tuple[str, int] | None:
        """The `innermost_place` of the shown frames in a ``stack_trace``, the text that torch stores at each node."""
        frames = [
            traceback.FrameSummary(match["file"], int(match["line"]), match["name"] or "", lookup_line=False)
            for match in _STACK_LINE.finditer(text or "")
            if self.is_shown(match["file"])
        ]
        return self.innermost_place(frames)

    def raise_from(
        self,
        error: BaseException,
        summary: str,
        *,
        code: str,
        hint: str | None = None,
        fallback: dict[str, object],
        hides_error_text: bool = False,
    ) -> NoReturn:
        """Raise a SourceError about `error`. It shows the `summary`, the error itself, and the `user_frames`.

        The place is the `innermost_place` of these frames, or the line of a syntax error in a file that messages show. If
        there is neither, it is `fallback`. With `hides_error_text`, the text of `error` (about torch's internals) is
        shown only if there are no `user_frames`. `advice` about the error replaces `hint`.
        """
        frames = self.user_frames(error.__traceback__)
        place = self.innermost_place(frames)
        lines = [summary] if hides_error_text and frames else [summary, describe_error(error)]
        lines += self._frame_lines(frames)
        if isinstance(error, SyntaxError) and error.filename and self.is_shown(error.filename):
            place = (self.shown_path(error.filename), error.lineno or 0)
            lines.append(f"  {place[0]}:{place[1]}: {(error.text or '').strip()}")
        hint = advice(error, frames[-1].filename if frames else None) or hint
        where = {"file": place[0], "line": place[1]} if place else fallback
        raise SourceError("\n".join(lines), code=code, hint=hint, **where) from error  # type: ignore[arg-type]

    def _frame_lines(self, frames: Sequence[traceback.FrameSummary]) -> list[str]:
        """One line for each frame; consecutive equal frames are one line."""
        lines = []
        for line, equal_lines in groupby(
            f"  {self.shown_path(frame.filename)}:{frame.lineno} in {frame.name}: {(frame.line or '').strip()}"
            for frame in frames
        ):
            count = len(list(equal_lines))
            lines.append(line + (f"  ({count} times)" if count > 1 else ""))
        return lines[-_MAX_FRAMES:]

    def is_shown(self, filename: str) -> bool:
        """Whether a file belongs to the user, or to a distribution whose frames are shown."""
        owner = self._owners.of(filename)
        if owner.kind == "distribution":
            return owner.distribution not in _HIDDEN_DISTRIBUTIONS
        return owner.kind == "user"


def describe_error(error: BaseException) -> str:
    """The type of an error and the first lines of its text: ``ValueError: its text``."""
    text = (error.msg or "") if isinstance(error, SyntaxError) else first_lines(error_text(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def first_lines(text: str, count: int = 4) -> str:
    """The first lines of an error's text. Long lines are shortened, and torch's advice about its logs is left out."""
    lines = [line.rstrip() for line in text.expandtabs(2).strip().splitlines()]
    lines = [line for line in lines if line and not _LOG_ADVICE.search(line)]
    return "\n".join(line if len(line) <= _MAX_LINE_LENGTH else f"{line[:_MAX_LINE_LENGTH]}…" for line in lines[:count])


def find_caller(owners: FileOwners, skipped: frozenset[str] = frozenset()) -> tuple[str, int] | None:
    """File and line of the nearest frame in user code or in a distribution; None if there is no such frame. The frames of
    the distributions `skipped` do not count."""
    frame = find_calling_frame(owners, skipped)
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def is_thread_of_python(owners: FileOwners) -> bool:
    """Whether this is a thread with no code but Python's, apart from the functions of trtbuild that it calls now."""
    if threading.current_thread() is threading.main_thread():
        return False
    kinds: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        kinds.append(owners.of(frame.f_code.co_filename).kind)
        frame = frame.f_back
    outer_kinds = set(dropwhile(lambda kind: kind == "trtbuild", kinds))
    return bool(outer_kinds) and outer_kinds <= {"python", "ignored"}


def find_calling_frame(owners: FileOwners, skipped: frozenset[str] = frozenset()) -> FrameType | None:
    """Like `find_caller`, but returns the frame."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = owners.of(frame.f_code.co_filename)
        if owner.kind in ("user", "distribution") and owner.distribution not in skipped:
            return frame
        frame = frame.f_back
    return None
