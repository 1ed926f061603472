"""Find the first line of the user's code that only one of two calls runs.

The program does not show a branch that export froze, but two runs of the model do. Both calls run again, line by line. As
this is slow, it is used only for error messages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

Line = tuple[str, int]


def diverging_line(
    first_call: Callable[[], object], second_call: Callable[[], object], is_shown: Callable[[str], bool]
) -> tuple[Line, bool] | None:
    """Return the first line that only one of two calls runs (file as compiled, number), and whether that call is
    `first_call`.

    Only files with `is_shown` count. Returns None if both calls run the same lines, or if one of them fails.
    """
    try:
        first, second = _lines(first_call, is_shown), _lines(second_call, is_shown)
    except Exception:
        return None
    for lines, others, is_here in ((first, second, True), (second, first, False)):
        only_here = next((line for line in lines if line not in others), None)
        if only_here:
            return only_here, is_here
    return None


def _lines(call: Callable[[], object], is_shown: Callable[[str], bool]) -> dict[Line, None]:
    """The lines that `call` runs, in order, each once."""
    lines: dict[Line, None] = {}
    shown: dict[str, bool] = {}

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in shown:
            shown[name] = is_shown(name)
        return step if shown[name] else None

    def step(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            lines[frame.f_code.co_filename, frame.f_lineno] = None
        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines
