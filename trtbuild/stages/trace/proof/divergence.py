"""Find the first line of the user's code that only one of two calls runs.

torch.export may keep only one side of a branch. The exported program does not show where, but two calls of the model do.
Recording their lines is slow, so this is only for error messages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

#: A file, as its code object names it, and a line number.
Line = tuple[str, int]


def diverging_line(
    first_call: Callable[[], object], second_call: Callable[[], object], is_shown: Callable[[str], bool]
) -> tuple[Line, bool] | None:
    """Return the first line that only one of two calls runs, and whether that call is `first_call`.

    Files for which `is_shown` returns False are ignored. Returns None if both calls run the same lines, or if a call fails.
    """
    try:
        first, second = _run_lines(first_call, is_shown), _run_lines(second_call, is_shown)
    except Exception:
        return None
    for lines, other_lines, is_first in ((first, second, True), (second, first, False)):
        only_line = next((line for line in lines if line not in other_lines), None)
        if only_line:
            return only_line, is_first
    return None


def _run_lines(call: Callable[[], object], is_shown: Callable[[str], bool]) -> dict[Line, None]:
    """The lines that `call` runs, in order, each once."""
    lines: dict[Line, None] = {}
    is_file_shown: dict[str, bool] = {}

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in is_file_shown:
            is_file_shown[name] = is_shown(name)
        return step if is_file_shown[name] else None

    def step(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            lines[frame.f_code.co_filename, frame.f_lineno] = None
        return step

    previous_trace = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(previous_trace)
    return lines
