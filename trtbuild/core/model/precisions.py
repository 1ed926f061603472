"""The floating-point types in which a model computes: a default, and other types for some of its modules.

Rules
1. A pattern covers the modules that it matches, and all modules inside them (`trtbuild.core.values.module_paths`). A module
   computes in the precision of the pattern that covers it, and otherwise in the default. Operators in the ``forward`` of
   the model itself have no module path, so they compute in the default.
2. If patterns of two precisions cover a module, the pattern that names the inner module counts: ``*.norm`` counts for
   ``encoder.norm`` if the other pattern is ``encoder``.
3. If both patterns name the same module, a pattern without wildcards counts. If both or neither have wildcards, SourceError
   is raised, because the manifest does not say which pattern is meant.
4. For rule 2, a pattern names the outermost module that it matches: ``encoder.*`` names ``encoder.layers``, and no module
   inside ``encoder.layers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeGuard

from trtbuild.core.values.encoding import Value
from trtbuild.core.values.module_paths import advice_for_unmatched, covering_module, has_wildcards
from trtbuild.errors import SourceError

Precision = Literal["float32", "float16", "bfloat16"]

#: The precisions, in the order in which messages and documents list them.
PRECISIONS: tuple[Precision, ...] = ("float32", "float16", "bfloat16")


def is_precision(name: str) -> TypeGuard[Precision]:
    return name in PRECISIONS


@dataclass(frozen=True)
class ModulePrecision:
    """The modules that `pattern` covers compute in `precision`."""

    pattern: str
    precision: Precision

    @property
    def field(self) -> str:
        """The name of this entry in `trtbuild.core.model.spec.Model.places`, which maps names to places in the manifest."""
        return f"precision.{self.pattern}"


def module_precisions(patterns: Mapping[Precision, Iterable[str]]) -> tuple[ModulePrecision, ...]:
    """The entries for the patterns of each precision, sorted and without repetitions."""
    return tuple(
        ModulePrecision(pattern, precision)
        for precision in PRECISIONS
        for pattern in sorted(set(patterns.get(precision, ())))
    )


@dataclass(frozen=True)
class Precisions:
    """The precision of each module: `default`, except for the modules that `modules` cover."""

    default: Precision = "float32"
    modules: tuple[ModulePrecision, ...] = ()

    @property
    def names(self) -> tuple[Precision, ...]:
        """The precisions that occur, the default first."""
        others = {entry.precision for entry in self.modules} - {self.default}
        return (self.default, *(precision for precision in PRECISIONS if precision in others))

    def entry_of(self, path: str) -> ModulePrecision | None:
        """The entry that decides about the module at `path`; None for the default. Raises SourceError (rule 3)."""
        # (depth of the module that a pattern names, whether the pattern is a plain path) → precision → entry
        ranked: dict[tuple[int, bool], dict[Precision, ModulePrecision]] = {}
        for entry in self.modules:
            module = covering_module(entry.pattern, path)
            if module is not None:
                rank = (module.count("."), not has_wildcards(entry.pattern))
                ranked.setdefault(rank, {}).setdefault(entry.precision, entry)
        if not ranked:
            return None
        first, *others = ranked[max(ranked)].values()
        if others:
            raise _ambiguous(path, first, others[0])
        return first

    def of(self, path: str) -> Precision:
        """The precision of the module at `path`. Raises SourceError (rule 3)."""
        entry = self.entry_of(path)
        return self.default if entry is None else entry.precision

    def check(self, paths: Sequence[str]) -> None:
        """Raise SourceError if a pattern covers none of `paths`, the module paths of a model's operators."""
        for entry in self.modules:
            if all(covering_module(entry.pattern, path) is None for path in paths):
                raise SourceError(
                    f"precision: {entry.pattern!r} ({entry.precision}) matches no module that computes anything in the "
                    "model",
                    code="precision-pattern",
                    hint=advice_for_unmatched(entry.pattern, paths),
                    field=entry.field,
                )

    def to_key(self) -> Value:
        """The value in a key: the name of the only precision, or the default and all entries."""
        if not self.modules:
            return self.default
        return {"default": self.default, "modules": [[entry.pattern, entry.precision] for entry in self.modules]}


def _ambiguous(path: str, first: ModulePrecision, second: ModulePrecision) -> SourceError:
    module = covering_module(first.pattern, path) or path
    return SourceError(
        f"precision: module {module!r} is matched by {first.pattern!r} ({first.precision}) and by {second.pattern!r} "
        f"({second.precision})",
        code="precision-pattern",
        hint=f"list {module!r} itself under the precision that it should have: a path without wildcards counts first",
        field=second.field,
    )


@dataclass(frozen=True, kw_only=True)
class ComputedOperator:
    """Calls of one operator in one module that compute in one floating type.

    `module` is the path of the module, empty for the model itself. `operator` is the operator's name in PyTorch, and
    `calls` the number of its calls. `pattern` is the pattern of the manifest that decides about the module, null for the
    default. If the operator does not compute in the precision of its module, `rule` is the name of the rule that keeps it
    in another type, and `reason` says why.
    """

    module: str
    operator: str
    calls: int
    type: str
    pattern: str | None
    rule: str | None
    reason: str | None
