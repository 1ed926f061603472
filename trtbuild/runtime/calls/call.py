"""One call of a package, as all of its parts see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: A tensor of this runtime: torch's, or one of `trtbuild.runtime.memory.arrays`. It has `shape`, `dtype` and `device`.
Array = Any


@dataclass(slots=True, eq=False)
class Call:
    """One call: the optimization profile, the size of each symbol (in the graph's units), the CUDA stream that work is
    enqueued on (0 is the default stream, and is what the CPU has), and the device as the arrays name it.

    `decides` says that values which are given with this very object always have the same shapes."""

    profile: int
    sizes: tuple[int, ...]
    stream: int
    device: Any
    decides: bool = False
