"""The properties of one call of a package. All partitions get the same `Call`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: A torch tensor, or a `DeviceArray` (`trtbuild.runtime.memory.arrays`).
Array = Any


@dataclass(slots=True, eq=False)
class Call:
    """The properties of one call. A later call with the same properties may use the same object.

    `profile` is the number of the optimization profile. `sizes` has the value of each symbol, the variable that stands for
    a dynamic dimension in the graph. `stream` is the handle of the CUDA stream: 0 is the default stream, and is also used
    on the CPU. `device` is the arrays' attribute `device`.

    If `has_fixed_shapes` is True, a partition gets inputs of the same shapes in all calls that use this object. With
    several partitions it is False, because the inputs of later partitions may have sizes that depend on data."""

    profile: int
    sizes: tuple[int, ...]
    stream: int
    device: Any
    has_fixed_shapes: bool = False
