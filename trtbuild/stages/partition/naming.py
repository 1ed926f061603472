"""Name partitions, for plans, files and error messages.

Rules
1. The name of a partition is the module path of its region, which is one call of a module (`regions`). Several partitions
   with the same path get numbers: ``layers.3#0``, ``layers.3#1``. This happens if a module is called twice, or a region
   is split. Partitions without a path are called ``p<position>``. If the only partition has no path, it is the whole
   model, and is called ``model``.
2. Names are unique, because values are named ``<partition>:<output>``. No partition is called ``input`` or ``weight``,
   because ``input:0`` and ``weight:0`` are values of the model.
3. Names are file names: ``_`` replaces the characters of a module path that a file name should not have.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from trtbuild.stages.partition.regions import REST_REGION, Region

_RESERVED_NAMES = ("input", "weight")
_UNSAFE_CHARACTER = re.compile(r"[^A-Za-z0-9_.-]")


def partition_names(regions: Sequence[Region | None]) -> list[str]:
    """Return one name for each partition, in order. A partition without a region runs in PyTorch."""
    if len(regions) == 1 and regions[0] in (None, REST_REGION):
        return ["model"]
    paths = ["" if region is None else _UNSAFE_CHARACTER.sub("_", region.path) for region in regions]
    path_counts, used_numbers = Counter(paths), Counter[str]()
    used_names = set(_RESERVED_NAMES)
    names = {}
    for position in sorted(range(len(paths)), key=lambda position: not paths[position]):  # first those with a path
        path = paths[position]
        name = path or f"p{position}"
        if path and path_counts[path] > 1:
            name = f"{path}#{used_numbers[path]}"
            used_numbers[path] += 1
        while name in used_names:
            name += "_"
        used_names.add(name)
        names[position] = name
    return [names[position] for position in range(len(paths))]
