"""The values of one call of a package that all its parts get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: A tensor of this runtime: torch's, or one of `trtbuild.runtime.memory.arrays`. It has `shape`, `dtype` and `device`.
Array = Any


@dataclass(slots=True, eq=False)
class Call:
    """One call: the optimization profile, the size of each symbol (in the graph's units), the CUDA stream for its work
    (0 is the default stream, also used on the CPU), and the device in the arrays' form.

    `decides`: values that are passed with this object always have the same shapes."""

    profile: int
    sizes: tuple[int, ...]
    stream: int
    device: Any
    decides: bool = False
