"""Work on a traced program without torch learning anything more about its symbols.

Whenever torch runs an operator on symbolic sizes it may ask whether two of them are equal, or whether one is 1. It answers
by the sizes of the example, and then takes the answer for a fact of the program: a symbol of which such facts leave one
size (1..2, once it is not 1) is replaced by that number, in every value that is made from it. While a model is traced,
torch.export reports such facts. Behind the trace nobody does, so each is used once there and forgotten.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch.fx.experimental.symbolic_shapes import ShapeEnv


@contextlib.contextmanager
def fixed_symbols() -> Iterator[None]:
    """Keep the symbols of every program, whatever is asked of their sizes in this block, by this thread."""
    with ShapeEnv().suppress_guards():  # of all of them: what is set is a variable of the thread
        yield
