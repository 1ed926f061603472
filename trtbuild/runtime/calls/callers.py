"""Find the line of user code that called trtbuild, for warnings and messages."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from pathlib import Path
from types import FrameType

from trtbuild import errors

_PACKAGE_FOLDER = f"{Path(errors.__file__).resolve().parent}{os.sep}"


def user_frame() -> FrameType:
    """Return the innermost frame outside trtbuild, torch and contextlib or, without such a frame, the outermost frame."""
    skipped = (_PACKAGE_FOLDER, contextlib.__file__, *_torch_paths())
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(skipped):
        frame = frame.f_back
    return frame


def warn(text: str) -> None:
    """Issue a RuntimeWarning at the line of user code that called trtbuild."""
    frame: FrameType | None = sys._getframe(1)
    target, level = user_frame(), 2
    while frame is not None and frame is not target:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, RuntimeWarning, stacklevel=level)


def _torch_paths() -> tuple[str, ...]:
    torch = sys.modules.get("torch")
    file = getattr(torch, "__file__", None)
    return () if file is None else (f"{Path(file).parent}{os.sep}", "<eval_with_key>")
