"""Name partitions, for plans, files and error messages.

Rules
1. The name of a region is its module path. If there are several of that path (a module that is called twice, a region
   in pieces), the next have a number: ``layers.3``, ``layers.3#1``. The others are ``p<position>``; a partition that is
   the whole model is ``model``.
2. Names are unique, and never ``input`` or ``weight``, because values are named ``<partition>:<output>``.
3. Names are file names: ``_`` replaces characters of a module path that a file name should not have.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from trtbuild.stages.partition.regions import REST, Region

_RESERVED = ("input", "weight")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


def partition_names(regions: Sequence[Region | None]) -> list[str]:
    """Return one name for each partition, in order. None is a PyTorch partition."""
    if len(regions) == 1 and regions[0] in (None, REST):
        return ["model"]
    paths = ["" if region is None else _UNSAFE.sub("_", region.path) for region in regions]
    count, seen = Counter(paths), Counter[str]()
    taken = set(_RESERVED)
    names = {}
    for position in sorted(range(len(paths)), key=lambda position: not paths[position]):  # paths first
        path = paths[position]
        name = path or f"p{position}"
        if path and count[path] > 1:
            name = f"{path}#{seen[path]}"
            seen[path] += 1
        while name in taken:
            name += "_"
        taken.add(name)
        names[position] = name
    return [names[position] for position in range(len(paths))]
