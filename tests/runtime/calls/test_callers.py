"""Warnings are at the user's line, however deep they come from."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from trtbuild.runtime.calls import callers


def made_in(file: str) -> Callable[[Callable[[], object]], None]:
    """A function of `file` that calls what it is given."""
    space: dict[str, Any] = {}
    exec(compile("def run(call):\n    call()\n", file, "exec"), space)
    return space["run"]  # type: ignore[no-any-return]


def test_frames_of_trtbuild_and_torch_are_passed_over() -> None:
    ours, theirs = made_in(f"{callers._OURS}/runtime/x.py"), made_in(f"{torch.__path__[0]}/_dynamo/x.py")
    with pytest.warns(RuntimeWarning, match="slow") as said:
        line = sys._getframe().f_lineno + 1
        theirs(partial(ours, partial(theirs, partial(callers.warn, "slow"))))
    (warning,) = said
    assert (warning.filename, warning.lineno) == (__file__, line)


def test_a_frame_of_the_user_in_between_is_the_users_line() -> None:
    theirs, mine = made_in(f"{torch.__path__[0]}/x.py"), made_in("model.py")
    with pytest.warns(RuntimeWarning) as said:
        theirs(partial(mine, partial(theirs, partial(callers.warn, "slow"))))
    assert (said[0].filename, said[0].lineno) == ("model.py", 2)
