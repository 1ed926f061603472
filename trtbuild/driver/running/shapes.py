"""The shapes of a call. The user gives some of them. For the other inputs, a profile gives matching sizes.

Rules
1. A given size sets its dim. Other dims have the size of a profile.
2. The profile is the named profile. Without a name, it is the first profile that accepts all given shapes. If no profile
   accepts them, it is the first profile. This module does not check whether shapes fit; the call rejects them if not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trtbuild.core.packages.package_index import PackageIndex, PackedProfile
from trtbuild.core.values.expressions import Expression, evaluate
from trtbuild.core.values.nearest import suggestion
from trtbuild.errors import UsageError

WHICH = ("min", "opt", "max")

Shape = tuple[int, ...]


def profile_named(index: PackageIndex, name: str) -> PackedProfile:
    """Return the profile `name`. Raises UsageError."""
    names = [profile.name for profile in index.profiles]
    if name not in names:
        raise UsageError(f"no profile is called {name!r}", hint=suggestion(name, names, "profiles"))
    return index.profiles[names.index(name)]


def shapes_of(
    index: PackageIndex, given: Mapping[str, Sequence[int]], profile: PackedProfile | None = None, which: str = "opt"
) -> dict[str, Shape]:
    """Return the shape of each input, for the `given` shapes and the min, opt or max (`which`) of a profile."""
    chosen = profile or next(
        (candidate for candidate in index.profiles if _accepts(index, candidate, given)), index.profiles[0]
    )
    profile_shapes = {
        entry.name: tuple(getattr(ranges, which)) for entry, ranges in zip(index.inputs, chosen.shapes, strict=True)
    }
    units = _units(index, profile_shapes) | _units(index, given)
    symbols = [units.get(number, 1) for number in range(len(index.dims))]
    return {
        entry.name: tuple(given[entry.name])
        if entry.name in given
        else tuple(evaluate(size, symbols) for size in entry.shape)
        for entry in index.inputs
    }


def described(index: PackageIndex, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return dim → size for these shapes."""
    units = _units(index, shapes)
    return {dim.name: units[number] * dim.multiple_of for number, dim in enumerate(index.dims) if number in units}


def _accepts(index: PackageIndex, profile: PackedProfile, given: Mapping[str, Sequence[int]]) -> bool:
    for entry, ranges in zip(index.inputs, profile.shapes, strict=True):
        shape = given.get(entry.name)
        if shape is not None and (
            len(shape) != len(ranges.min)
            or any(not low <= size <= high for low, size, high in zip(ranges.min, shape, ranges.max, strict=True))
        ):
            return False
    return True


def _units(index: PackageIndex, shapes: Mapping[str, Sequence[int]]) -> dict[int, int]:
    """Return symbol → its size in the graph's units, for all symbols that follow from `shapes`."""
    units: dict[int, int] = {}
    for entry in index.inputs:
        for size, expression in zip(shapes.get(entry.name, ()), entry.shape, strict=False):
            unit = _unit(expression)
            if unit is not None:
                units.setdefault(unit[0], size // unit[1])
    return units


def _unit(expression: Expression) -> tuple[int, int] | None:
    """Return (symbol, factor) for ``symbol`` and ``factor × symbol``; None for any other expression."""
    if isinstance(expression, int):
        return None
    operator, *operands = expression
    if operator == "sym" and isinstance(operands[0], int):
        return operands[0], 1
    if operator == "mul" and len(operands) == 2 and isinstance(operands[0], int) and operands[0] > 0:
        inner = _unit(operands[1])
        return (inner[0], inner[1] * operands[0]) if inner is not None else None
    return None
