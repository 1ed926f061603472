"""The shapes of a call's inputs. The user gives some shapes, and the others follow from these shapes and a profile.

Rules
1. A given size sets its dim. A dim that no given size sets has its min, opt or max size in the profile.
2. The user may name the profile. Otherwise it is the first profile that accepts all given shapes. If no profile accepts
   them, it is the first profile. The call, and not this module, refuses shapes outside a profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trtbuild.core.packages.package_index import PackageIndex, PackedProfile
from trtbuild.core.values.expressions import Expression, evaluate
from trtbuild.core.values.nearest import suggestion
from trtbuild.errors import UsageError

SHAPE_KINDS = ("min", "opt", "max")

Shape = tuple[int, ...]


def profile_by_name(index: PackageIndex, name: str) -> PackedProfile:
    """Return the profile `name`. Raises UsageError."""
    names = [profile.name for profile in index.profiles]
    if name not in names:
        raise UsageError(f"no profile is called {name!r}", hint=suggestion(name, names, "profiles"))
    return index.profiles[names.index(name)]


def shapes_of(
    index: PackageIndex,
    given_shapes: Mapping[str, Sequence[int]],
    profile: PackedProfile | None = None,
    which: str = "opt",
) -> dict[str, Shape]:
    """Return the shape of each input (rules 1 and 2). `which` chooses the min, opt or max sizes of the profile."""
    chosen_profile = profile or next(
        (candidate for candidate in index.profiles if _accepts(index, candidate, given_shapes)), index.profiles[0]
    )
    profile_shapes = {
        entry.name: tuple(getattr(ranges, which))
        for entry, ranges in zip(index.inputs, chosen_profile.shapes, strict=True)
    }
    symbol_values = _symbol_values(index, profile_shapes) | _symbol_values(index, given_shapes)
    # a symbol that occurs only in expressions other than `symbol` and `factor × symbol` has no value here, and gets 1
    values = [symbol_values.get(number, 1) for number in range(len(index.dims))]
    return {
        entry.name: tuple(given_shapes[entry.name])
        if entry.name in given_shapes
        else tuple(evaluate(size, values) for size in entry.shape)
        for entry in index.inputs
    }


def dim_sizes(index: PackageIndex, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return dim → size, for the dims whose sizes follow from these shapes."""
    symbol_values = _symbol_values(index, shapes)
    return {
        dim.name: symbol_values[number] * dim.multiple_of
        for number, dim in enumerate(index.dims)
        if number in symbol_values
    }


def _accepts(index: PackageIndex, profile: PackedProfile, given_shapes: Mapping[str, Sequence[int]]) -> bool:
    for entry, ranges in zip(index.inputs, profile.shapes, strict=True):
        shape = given_shapes.get(entry.name)
        if shape is not None and (
            len(shape) != len(ranges.min)
            or any(not low <= size <= high for low, size, high in zip(ranges.min, shape, ranges.max, strict=True))
        ):
            return False
    return True


def _symbol_values(index: PackageIndex, shapes: Mapping[str, Sequence[int]]) -> dict[int, int]:
    """Return symbol → its value, for the symbols whose values follow from `shapes`.

    A symbol is the number of a dim in size expressions. The size of the dim is `multiple_of` times the symbol's value."""
    values: dict[int, int] = {}
    for entry in index.inputs:
        for size, expression in zip(shapes.get(entry.name, ()), entry.shape, strict=False):
            symbol_and_factor = _symbol_and_factor(expression)
            if symbol_and_factor is not None:
                symbol, factor = symbol_and_factor
                values.setdefault(symbol, size // factor)
    return values


def _symbol_and_factor(expression: Expression) -> tuple[int, int] | None:
    """Return (symbol, factor) for ``symbol`` and ``factor × symbol``; None for any other expression."""
    if isinstance(expression, int):
        return None
    operator, *operands = expression
    if operator == "sym" and isinstance(operands[0], int):
        return operands[0], 1
    if operator == "mul" and len(operands) == 2 and isinstance(operands[0], int) and operands[0] > 0:
        inner = _symbol_and_factor(operands[1])
        if inner is not None:
            symbol, factor = inner
            return symbol, factor * operands[0]
    return None
