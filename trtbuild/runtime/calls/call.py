"""The properties of one call of a package. All parts get the same `Call`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: A tensor of this runtime: a torch tensor, or an array of `trtbuild.runtime.memory.arrays`. It has `shape`, `dtype` and
#: `device`.
Array = Any


@dataclass(slots=True, eq=False)
class Call:
    """One call.

    `profile` is the number of the optimization profile, and `sizes` has the size of each symbol (in the graph's units).
    `stream` is the CUDA stream for the work: 0 is the default stream, also used on the CPU. `device` is the value that the
    arrays have as `device`.

    If `decides` is True, the values that are passed with this object always have the same shapes."""

    profile: int
    sizes: tuple[int, ...]
    stream: int
    device: Any
    decides: bool = False
