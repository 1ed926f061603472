"""The properties of one call of a package. All partitions of the package get the same `Call`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: A tensor of this runtime: a torch tensor, or an array of `trtbuild.runtime.memory.arrays`. It has `shape`, `dtype` and
#: `device`.
Array = Any


@dataclass(slots=True, eq=False)
class Call:
    """The properties of one call.

    `profile` is the number of the optimization profile, and `sizes` has the value of each symbol of the graph.
    `stream` is the CUDA stream for the work: 0 stands for the default stream, and for the CPU. `device` is the value of
    the attribute `device` of the arrays.

    A later call with the same properties may use the same object. If `has_fixed_shapes` is True, the shapes of the inputs
    are the same in all calls that use the object."""

    profile: int
    sizes: tuple[int, ...]
    stream: int
    device: Any
    has_fixed_shapes: bool = False
