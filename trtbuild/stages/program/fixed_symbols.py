"""Prevent torch from adding guards (conditions on sizes) to a traced program.

When torch runs an operator on symbolic sizes, it may ask whether two sizes are equal, or whether a size is 1. torch answers
with the sizes of the example, and stores the answer as a guard. If the guards allow only one number for a symbol, torch
replaces the symbol by this number. For example, the range is 1..2, and a guard excludes 1. During a trace, torch.export
reports such guards. After the trace nothing would report them, so torch must not store them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch.fx.experimental.symbolic_shapes import ShapeEnv


@contextlib.contextmanager
def suppress_new_guards() -> Iterator[None]:
    """Store no new guards while this thread is in the block."""
    with ShapeEnv().suppress_guards():  # this sets a variable of the thread, so it affects all programs
        yield
