"""Prevent torch from adding guards to a traced program's symbols.

When torch runs an operator on symbolic sizes, it may check whether two sizes are equal, or whether a size is 1. It uses
the sizes of the example for this check, and stores the result as a guard of the program. If guards allow only one size
for a symbol, torch replaces the symbol by that number in all values. (For example, the range is 1..2, and a guard excludes
1.) During a trace, torch.export reports such guards. After the trace nothing would report them, so this file prevents
torch from storing them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch.fx.experimental.symbolic_shapes import ShapeEnv


@contextlib.contextmanager
def suppress_new_guards() -> Iterator[None]:
    """Store no new guards while this thread is in the block. So all programs keep their symbols."""
    with ShapeEnv().suppress_guards():  # this sets a variable of the thread, so it affects all programs
        yield
