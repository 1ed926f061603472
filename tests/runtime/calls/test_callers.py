"""A warning names the user's line, even if frames of trtbuild or torch are between this line and the warning."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from trtbuild.runtime.calls import callers


def caller_in(file: str) -> Callable[[Callable[[], object]], None]:
    """Return a function that calls its argument. The code of the function seems to be in `file`."""
    namespace: dict[str, Any] = {}
    exec(compile("def run(call):\n    call()\n", file, "exec"), namespace)
    return namespace["run"]  # type: ignore[no-any-return]


def test_skips_frames_of_trtbuild_and_torch() -> None:
    through_trtbuild, through_torch = (
        caller_in(f"{callers._PACKAGE_FOLDER}runtime/x.py"),
        caller_in(f"{torch.__path__[0]}/_dynamo/x.py"),
    )
    with pytest.warns(RuntimeWarning, match="slow") as warnings:
        line = sys._getframe().f_lineno + 1
        through_torch(partial(through_trtbuild, partial(through_torch, partial(callers.warn, "slow"))))
    (warning,) = warnings
    assert (warning.filename, warning.lineno) == (__file__, line)


def test_names_the_innermost_frame_of_the_user() -> None:
    through_torch, through_user = caller_in(f"{torch.__path__[0]}/x.py"), caller_in("model.py")
    with pytest.warns(RuntimeWarning) as warnings:
        through_torch(partial(through_user, partial(through_torch, partial(callers.warn, "slow"))))
    assert (warnings[0].filename, warnings[0].lineno) == ("model.py", 2)


def test_a_folder_whose_name_begins_like_that_of_trtbuild_belongs_to_the_user() -> None:
    file = f"{callers._PACKAGE_FOLDER.rstrip('/')}_models/net.py"
    with pytest.warns(RuntimeWarning) as warnings:
        caller_in(file)(partial(callers.warn, "slow"))
    assert warnings[0].filename == file
