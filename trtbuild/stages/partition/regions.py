"""Which part of the model an operator belongs to, where `granularity` asks for parts by module path.

Rules
1. A pattern is a module path whose parts may hold shell wildcards: ``encoder.layers.*`` matches the module
   ``encoder.layers.3`` and all that is inside. The first pattern that matches wins.
2. Each *call* of a matched module is a region of its own: a module that is called twice gives two regions, whose
   engines are one where structure and weights are equal.
3. A pattern that matches no module of the graph is an error: a build that ignored it would look like one that works.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch

from trtbuild.core.values.nearest import suggestion
from trtbuild.errors import SourceError
from trtbuild.stages.partition.units import Unit


@dataclass(frozen=True, order=True)
class Region:
    """Call number `call` of the module at `path`; the empty path is what no pattern matches."""

    path: str
    call: int = 0


#: What no pattern matches.
REST = Region("")

#: How torch numbers the calls of one module in the keys of ``nn_module_stack``, from the second on: ``L__self__l@1``.
_CALL = re.compile(r"@(\d+)$")


def module_path(node: torch.fx.Node) -> str:
    """The path of the module that called the operator; the empty string for the root."""
    paths = [path for _, path in _modules(node)]
    return paths[-1] if paths else ""


def region_of(node: torch.fx.Node, patterns: Sequence[str]) -> Region:
    """The call of the module that the first matching pattern means, or `REST`."""
    path = module_path(node)
    for pattern in patterns:
        instance = _instance(path, pattern)
        if instance is not None:
            return Region(instance, _call_number(node, instance))
    return REST


def check_patterns(units: Iterable[Unit], patterns: Sequence[str]) -> None:
    """Raise SourceError (code ``granularity``) for a pattern that no operator's module path matches."""
    paths = list(dict.fromkeys(module_path(unit.call) for unit in units))
    wrong = [pattern for pattern in patterns if all(_instance(path, pattern) is None for path in paths)]
    if wrong:
        modules = dict.fromkeys(_general(prefix) for path in paths for prefix in _prefixes(path))
        raise SourceError(
            f"granularity {wrong[0]!r} matches no module that computes anything in the model",
            code="granularity",
            hint=suggestion(wrong[0], modules, "module paths"),
        )


def _modules(node: torch.fx.Node) -> Iterator[tuple[str, str]]:
    """(torch's key, path) of the module calls around an operator, outermost first."""
    for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
        yield str(key), path


def _instance(path: str, pattern: str) -> str | None:
    """The path, or that of the module around it, that `pattern` matches as a whole."""
    parts, wanted = path.split("."), pattern.split(".")
    if path and len(parts) >= len(wanted) and all(map(fnmatchcase, parts, wanted)):
        return ".".join(parts[: len(wanted)])
    return None


def _call_number(node: torch.fx.Node, instance: str) -> int:
    for key, path in _modules(node):
        if path == instance or path.startswith(f"{instance}."):  # a module may be called past its parent
            number = _CALL.search(key)
            return int(number[1]) if number else 0
    return 0


def _prefixes(path: str) -> Iterator[str]:
    parts = path.split(".") if path else []
    for length in range(1, len(parts) + 1):
        yield ".".join(parts[:length])


def _general(path: str) -> str:
    """``layers.3.mlp`` → ``layers.*.mlp``: what a user would write."""
    return ".".join("*" if part.isdigit() else part for part in path.split("."))
