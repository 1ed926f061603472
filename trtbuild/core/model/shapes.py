"""The dynamic sizes of a model: symbols with their ranges, and the shape of each input, written with these symbols.

`trtbuild.core.model.declared_shapes` derives both from the profiles and the named dims.

A trace may find that two symbols are always equal (a *tie*). They become one symbol (`ShapePlan.merge_ties`) if their
declarations are equal: the same min, opt and max in every profile, and the same ``multiple_of``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from trtbuild.core.model.spec import Input, Profile


@dataclass(frozen=True)
class Symbol:
    """One dynamic dimension. `min`, `max` and `example` are sizes, and multiples of `multiple_of`."""

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


#: Pairs of symbols that must be equal, by their numbers in the declared `ShapePlan`.
Ties = Sequence[tuple[int, int]]


def kept_symbols(count: int, ties: Ties) -> list[int]:
    """For each of `count` symbols, the number of the symbol that replaces it when `ties` are merged.

    The first of several tied symbols replaces all of them. A symbol without ties stays."""
    representatives = list(range(count))
    for first_symbol, second_symbol in ties:
        kept_number, replaced_number = sorted((representatives[first_symbol], representatives[second_symbol]))
        representatives = [kept_number if number == replaced_number else number for number in representatives]
    return representatives


@dataclass(frozen=True)
class ShapePlan:
    """The symbols of a model, and the shape of each of its inputs, in order."""

    symbols: tuple[Symbol, ...]
    shapes: tuple[tuple[Axis, ...], ...]

    def input_shapes(self, sizes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """The shape of each input if symbol i has the size `sizes[i]`."""
        return tuple(
            tuple(axis if isinstance(axis, int) else sizes[axis.symbol] for axis in shape) for shape in self.shapes
        )

    @property
    def example_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The input shapes with which the model is traced."""
        return self.input_shapes([symbol.example for symbol in self.symbols])

    def merge_ties(self, ties: Ties) -> ShapePlan:
        """The plan in which each pair of tied symbols is one symbol: the one with the smaller number."""
        kept = kept_symbols(len(self.symbols), ties)
        numbers = {first: number for number, first in enumerate(dict.fromkeys(kept))}
        shapes = tuple(
            tuple(SymbolAxis(numbers[kept[axis.symbol]]) if isinstance(axis, SymbolAxis) else axis for axis in shape)
            for shape in self.shapes
        )
        return ShapePlan(tuple(self.symbols[first] for first in numbers), shapes)


MinOptMax = Literal["min", "opt", "max"]
MIN_OPT_MAX: tuple[MinOptMax, ...] = ("min", "opt", "max")


def axes_of_symbol(plan: ShapePlan, inputs: Sequence[Input], symbol: int) -> list[str]:
    """The axes of a symbol, as a manifest writes them: ``image.2``."""
    return [
        f"{entry.name}.{number}"
        for entry, shape in zip(inputs, plan.shapes, strict=True)
        for number, axis in enumerate(shape)
        if isinstance(axis, SymbolAxis) and axis.symbol == symbol
    ]


def profile_sizes(plan: ShapePlan, profile: Profile, which: str) -> tuple[int, ...]:
    """The size of each symbol at a profile's ``min``, ``opt`` or ``max``."""
    sizes: dict[int, int] = {}
    for (_, shape_range), axes in zip(profile.shapes, plan.shapes, strict=True):
        for axis, size in zip(axes, getattr(shape_range, which), strict=True):
            if isinstance(axis, SymbolAxis):
                sizes.setdefault(axis.symbol, size)
    return tuple(sizes[index] for index in range(len(plan.symbols)))


def proof_points(plan: ShapePlan, profiles: Sequence[Profile]) -> tuple[tuple[int, ...], ...]:
    """The sizes of the symbols at which a trace is compared with eager PyTorch, without duplicates: the min and the max of
    every profile, and points where only some symbols have size 1.

    torch.export assumes that no dynamic size is 1, and makes no guard for this. So a branch such as
    ``batch == 1 and length > 1`` differs from its trace only where one size is 1 and another is not. If a symbol begins at
    1 in a profile, there are two more points: the profile's max with only this symbol at 1, and the profile's max with all
    such symbols except this one at 1. (torch counts in multiples: its symbol is the size divided by ``multiple_of``. So a
    symbol at 1 is the size ``multiple_of``.)"""
    points: list[tuple[int, ...]] = []
    for profile in profiles:
        low, high = profile_sizes(plan, profile, "min"), profile_sizes(plan, profile, "max")
        points += [low, high]
        ones = {number for number, symbol in enumerate(plan.symbols) if low[number] == symbol.multiple_of}
        for number in sorted(ones):
            for at_one in ({number}, ones - {number}):
                points.append(tuple(low[n] if n in at_one else size for n, size in enumerate(high)))
    return tuple(dict.fromkeys(points))


def pairs_of_separate_symbols(plan: ShapePlan, profiles: Sequence[Profile]) -> tuple[tuple[int, int], ...]:
    """The pairs of symbols that must not be tied, although their `Symbol`s are equal except for the names.

    The min, the opt or the max of the two symbols differ in at least one profile."""
    values = [profile_sizes(plan, profile, which) for profile in profiles for which in MIN_OPT_MAX]
    return tuple(
        (one, other)
        for one, other in combinations(range(len(plan.symbols)), 2)
        if replace(plan.symbols[one], name="") == replace(plan.symbols[other], name="")
        and any(sizes[one] != sizes[other] for sizes in values)
    )
