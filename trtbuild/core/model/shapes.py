"""The dynamic sizes of a model: symbols with their ranges, and the shape of each input in terms of them.

`trtbuild.core.model.declared_shapes` derives them from the profiles.

Two symbols that a trace found to be always equal become one (`ShapePlan.tied`) if they are declared alike: with the same
min, opt and max in every profile, and the same ``multiple_of``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from trtbuild.core.model.spec import Input, Profile


@dataclass(frozen=True)
class Symbol:
    """One dynamic dimension. `min`, `max` and `example` are sizes, not units: each is a multiple of `multiple_of`."""

    name: str
    min: int
    max: int
    example: int
    multiple_of: int = 1


@dataclass(frozen=True)
class SymbolAxis:
    """An axis whose size is the size of symbol number `symbol`."""

    symbol: int


Axis = int | SymbolAxis


#: Pairs of symbols that must be equal, by their numbers in the declared plan.
Ties = Sequence[tuple[int, int]]


def kept_symbols(count: int, ties: Ties) -> list[int]:
    """For each of `count` symbols, the first of the symbols that are tied to it, or its own number."""
    kept = list(range(count))
    for one, other in ties:
        first, last = sorted((kept[one], kept[other]))
        kept = [first if number == last else number for number in kept]
    return kept


@dataclass(frozen=True)
class ShapePlan:
    """The symbols of a model, and the shape of each input in terms of them, in the order of the model's inputs."""

    symbols: tuple[Symbol, ...]
    shapes: tuple[tuple[Axis, ...], ...]

    def sizes(self, values: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """The shape of each input if symbol i has the size `values[i]`."""
        return tuple(
            tuple(axis if isinstance(axis, int) else values[axis.symbol] for axis in shape) for shape in self.shapes
        )

    @property
    def example(self) -> tuple[tuple[int, ...], ...]:
        """The input shapes with which the model is traced."""
        return self.sizes([symbol.example for symbol in self.symbols])

    def tied(self, ties: Ties) -> ShapePlan:
        """The plan with one symbol for both symbols of each pair. The symbol that is kept has the first one's name."""
        kept = kept_symbols(len(self.symbols), ties)
        numbers = {first: number for number, first in enumerate(dict.fromkeys(kept))}
        shapes = tuple(
            tuple(SymbolAxis(numbers[kept[axis.symbol]]) if isinstance(axis, SymbolAxis) else axis for axis in shape)
            for shape in self.shapes
        )
        return ShapePlan(tuple(self.symbols[first] for first in numbers), shapes)


MinOptMax = Literal["min", "opt", "max"]
MIN_OPT_MAX: tuple[MinOptMax, ...] = ("min", "opt", "max")


def places_of(plan: ShapePlan, inputs: Sequence[Input], symbol: int) -> list[str]:
    """The axes of a symbol, as a manifest writes them: ``image.2``."""
    return [
        f"{entry.name}.{number}"
        for entry, shape in zip(inputs, plan.shapes, strict=True)
        for number, axis in enumerate(shape)
        if isinstance(axis, SymbolAxis) and axis.symbol == symbol
    ]


def symbol_values(plan: ShapePlan, profile: Profile, which: str) -> tuple[int, ...]:
    """The size of each symbol at a profile's ``min``, ``opt`` or ``max``."""
    sizes: dict[int, int] = {}
    for (_, shape_range), axes in zip(profile.shapes, plan.shapes, strict=True):
        for axis, size in zip(axes, getattr(shape_range, which), strict=True):
            if isinstance(axis, SymbolAxis):
                sizes.setdefault(axis.symbol, size)
    return tuple(sizes[index] for index in range(len(plan.symbols)))


def different_opts(plan: ShapePlan, profiles: Sequence[Profile]) -> tuple[tuple[int, int], ...]:
    """The pairs of symbols that differ in nothing but the opt of a profile other than the first. They cannot be tied."""
    values = {which: [symbol_values(plan, profile, which) for profile in profiles] for which in MIN_OPT_MAX}

    def column(which: MinOptMax, symbol: int) -> list[int]:
        return [sizes[symbol] for sizes in values[which]]

    return tuple(
        (one, other)
        for one, other in combinations(range(len(plan.symbols)), 2)
        if column("opt", one) != column("opt", other)
        and replace(plan.symbols[one], name="") == replace(plan.symbols[other], name="")
        and all(column(which, one) == column(which, other) for which in ("min", "max"))
    )
