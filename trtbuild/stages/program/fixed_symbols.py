"""Prevent torch from adding guards to a traced program's symbols.

When torch runs an operator on symbolic sizes, it may check whether two sizes are equal, or whether a size is 1. It uses
the sizes of the example for this check, and stores the result as a guard of the program. If guards allow only one size
for a symbol (2 of 1..2, if it is not 1), torch replaces the symbol by that number in all values. During a trace,
torch.export reports such guards. After the trace nothing would report them, so here torch stores no guards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch.fx.experimental.symbolic_shapes import ShapeEnv


@contextlib.contextmanager
def fixed_symbols() -> Iterator[None]:
    """Keep the symbols of all programs while this thread is in the block."""
    with ShapeEnv().suppress_guards():  # this sets a variable of the thread, so it affects all programs
        yield
