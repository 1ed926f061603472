"""Patterns of module paths in the fields of a manifest.

Rules
1. A pattern is compared with the whole path of a module, as `fnmatch.fnmatchcase` does. So ``*`` also matches dots:
   ``*.norm`` names ``encoder.layers.0.norm``.
2. A pattern covers the modules that it names, and all modules inside them.
3. The model itself has the empty path. No pattern names it.

The patterns of `granularity` follow other rules, because they divide a model into regions
(`trtbuild.stages.partition.regions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from trtbuild.core.values.nearest import nearest, suggestion

_WILDCARDS = "*?["


def covering_module(pattern: str, path: str) -> str | None:
    """The outermost module on `path` that `pattern` names; None if the pattern does not cover the module at `path`."""
    return next((prefix for prefix in enclosing_paths(path) if fnmatchcase(prefix, pattern)), None)


def enclosing_paths(path: str) -> Iterator[str]:
    """Yield the paths of the modules around the module at `path`, outermost first, and `path` itself."""
    parts = path.split(".") if path else []
    for length in range(1, len(parts) + 1):
        yield ".".join(parts[:length])


def has_wildcards(pattern: str) -> bool:
    """Whether a pattern may name several modules."""
    return any(character in pattern for character in _WILDCARDS)


def advice_for_unmatched(pattern: str, paths: Iterable[str]) -> str:
    """A hint for a pattern that names no module of a model: the nearest path or pattern, and the model's first paths.

    Numbers in paths are written as ``*``, so that equal layers are listed once."""
    modules = dict.fromkeys(without_numbers(prefix) for path in paths for prefix in enclosing_paths(path))
    if has_wildcards(pattern):
        similar = nearest(pattern, [*modules, *(f"*.{module.rpartition('.')[2]}" for module in modules)])
        if similar is not None and similar not in modules:
            return f"did you mean {similar!r}? {suggestion('', modules, 'module paths')}"
    return suggestion(pattern, modules, "module paths")


def without_numbers(path: str) -> str:
    """``layers.3.mlp`` → ``layers.*.mlp``: a pattern for an error message."""
    return ".".join("*" if part.isdigit() else part for part in path.split("."))
