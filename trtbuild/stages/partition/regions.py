"""Find the region of the model that an operator belongs to, if `granularity` has module paths.

Rules
1. A pattern is a module path whose names may contain shell wildcards: ``encoder.layers.*`` matches the module
   ``encoder.layers.3`` and all modules inside it. The first pattern that matches counts.
2. Each *call* of a matched module is a separate region. If a module is called twice, its two regions share an engine if
   their structures are equal.
3. A pattern that matches no module of the graph is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch

from trtbuild.core.values.module_paths import enclosing_paths, without_numbers
from trtbuild.core.values.nearest import suggestion
from trtbuild.errors import SourceError
from trtbuild.stages.partition.units import Unit


@dataclass(frozen=True, order=True)
class Region:
    """One call of the module at `path`; `call` is the number of the call."""

    path: str
    call: int = 0


#: The region of all operators that no pattern matches.
REST_REGION = Region("")

#: The number of a module's call in the keys of ``nn_module_stack``, from the second call on: ``L__self__l@1``.
_CALL_NUMBER = re.compile(r"@(\d+)$")


def module_path(node: torch.fx.Node) -> str:
    """The path of the module that calls an operator; "" for the root module."""
    paths = [path for _, path in _module_calls(node)]
    return paths[-1] if paths else ""


def region_of(node: torch.fx.Node, patterns: Sequence[str]) -> Region:
    """The region of an operator: the call of the module that the first matching pattern names, or `REST_REGION`."""
    path = module_path(node)
    for pattern in patterns:
        matched_module = _matched_prefix(path, pattern)
        if matched_module is not None:
            return Region(matched_module, _call_number(node, matched_module))
    return REST_REGION


def check_patterns(units: Iterable[Unit], patterns: Sequence[str]) -> None:
    """Raise SourceError (code ``granularity``) for a pattern that no operator's module path matches."""
    paths = list(dict.fromkeys(module_path(unit.call) for unit in units))
    unmatched_patterns = [
        pattern for pattern in patterns if all(_matched_prefix(path, pattern) is None for path in paths)
    ]
    if unmatched_patterns:
        modules = dict.fromkeys(without_numbers(prefix) for path in paths for prefix in enclosing_paths(path))
        raise SourceError(
            f"granularity {unmatched_patterns[0]!r} matches no module that computes anything in the model",
            code="granularity",
            hint=suggestion(unmatched_patterns[0], modules, "module paths"),
        )


def _module_calls(node: torch.fx.Node) -> Iterator[tuple[str, str]]:
    """Yield (key in ``nn_module_stack``, path) of the module calls around an operator, outermost first."""
    for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
        yield str(key), path


def _matched_prefix(path: str, pattern: str) -> str | None:
    """The beginning of `path` that `pattern` matches, such as ``layers.3`` for ``layers.*``; None without a match."""
    parts, pattern_parts = path.split("."), pattern.split(".")
    if path and len(parts) >= len(pattern_parts) and all(map(fnmatchcase, parts, pattern_parts)):
        return ".".join(parts[: len(pattern_parts)])
    return None


def _call_number(node: torch.fx.Node, module: str) -> int:
    """The number of the call of `module` that an operator belongs to."""
    for key, path in _module_calls(node):
        if path == module or path.startswith(f"{module}."):  # a module may be called without a call of its parent
            number = _CALL_NUMBER.search(key)
            return int(number[1]) if number else 0
    return 0
