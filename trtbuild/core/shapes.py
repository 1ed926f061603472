"""From profiles to dimensions: which axes are dynamic, which share a symbol, and what each may be.

Rules
1. A dim's range is the union of all profiles' ranges. An axis whose union is one number is static.
2. A named dim may stand at several axes; their ranges and opts must agree in every profile.
3. A dynamic axis without a name gets one of its own: ``<input>_<axis>``.
4. ``multiple_of: k`` means sizes are k times a unit; every min, opt and max must be a multiple of k.
5. The example of a dim is the first profile's opt. Where that is 0 or 1, it is the smallest legal size that is at
   least 2, because torch.export specializes sizes 0 and 1. With ``multiple_of: k`` it is the unit that must be ≥ 2.
6. Symbols are numbered in the order in which they first appear in the inputs' axes, so names do not matter to keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtbuild.core.spec import Input, NamedDim, Profile


@dataclass(frozen=True)
class Symbol:
    """One dynamic dimension. `min`, `max` and `example` are sizes (not units); each is a multiple of `multiple_of`."""

    name: str
    min: int
    max: int
    example: int
    multiple_of: int = 1


@dataclass(frozen=True)
class SymbolAxis:
    """An axis that is as long as symbol number `symbol` says."""

    symbol: int


Axis = int | SymbolAxis


@dataclass(frozen=True)
class ShapePlan:
    """The symbols of a model, and each input's shape in them (in the order of the model's inputs)."""

    symbols: tuple[Symbol, ...]
    shapes: tuple[tuple[Axis, ...], ...]

    def sizes(self, values: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Each input's shape where symbol i is `values[i]` long."""
        return tuple(
            tuple(axis if isinstance(axis, int) else values[axis.symbol] for axis in shape) for shape in self.shapes
        )

    @property
    def example(self) -> tuple[tuple[int, ...], ...]:
        """The shapes that the model is traced with."""
        return self.sizes([symbol.example for symbol in self.symbols])


@dataclass(frozen=True)
class ShapeProblem:
    """Something wrong with the declared shapes. `path` is dotted inside the model, such as ``dims.height``,
    or ``profiles.<profile>.<input>``."""

    path: str
    text: str
    hint: str | None = None


def symbol_values(plan: ShapePlan, profile: Profile, which: str) -> tuple[int, ...]:
    """The size of each symbol at a profile's ``min``, ``opt`` or ``max``."""
    found: dict[int, int] = {}
    for (_, shape_range), axes in zip(profile.shapes, plan.shapes, strict=True):
        for axis, size in zip(axes, getattr(shape_range, which), strict=True):
            if isinstance(axis, SymbolAxis):
                found.setdefault(axis.symbol, size)
    return tuple(found[index] for index in range(len(plan.symbols)))


def derive(
    inputs: Sequence[Input], dims: Sequence[NamedDim], profiles: Sequence[Profile]
) -> tuple[ShapePlan | None, tuple[ShapeProblem, ...]]:
    """The shape plan of a model, or None and everything that is wrong. Never both problems and a plan."""
    problems = _rank_problems(inputs, profiles)
    if problems:
        return None, tuple(problems)
    named: dict[tuple[str, int], NamedDim] = {}
    ranks = {name: len(shape.min) for name, shape in profiles[0].shapes}
    for dim in dims:
        for place in dim.at:
            name, axis = place
            if name not in ranks:
                allowed = ", ".join(ranks)
                problems.append(
                    ShapeProblem(
                        f"dims.{dim.name}",
                        f"dim {dim.name!r} stands at {name}.{axis}, but there is no input {name!r}",
                        f"the inputs are: {allowed}",
                    )
                )
            elif not 0 <= axis < ranks[name]:
                problems.append(
                    ShapeProblem(
                        f"dims.{dim.name}",
                        f"dim {dim.name!r} stands at {name}.{axis}, but {name!r} has {ranks[name]} axes",
                        f"axes are 0 to {ranks[name] - 1}",
                    )
                )
            elif place in named:
                problems.append(
                    ShapeProblem(
                        f"dims.{dim.name}",
                        f"{name}.{axis} is in dim {named[place].name!r} and in dim {dim.name!r}",
                        "name one dim for each axis",
                    )
                )
            else:
                named[place] = dim
    if problems:
        return None, tuple(problems)
    return _symbols(inputs, named, profiles)


def _rank_problems(inputs: Sequence[Input], profiles: Sequence[Profile]) -> list[ShapeProblem]:
    problems: list[ShapeProblem] = []
    ranks: dict[str, tuple[int, str]] = {}
    for profile in profiles:
        for name, shape in profile.shapes:
            path = f"profiles.{profile.name}.{name}"
            if not len(shape.min) == len(shape.opt) == len(shape.max):
                problems.append(
                    ShapeProblem(
                        path,
                        f"min, opt and max of {name!r} have {len(shape.min)}, "
                        f"{len(shape.opt)} and {len(shape.max)} axes",
                        "write the same number",
                    )
                )
                continue
            for axis, (low, mid, high) in enumerate(zip(shape.min, shape.opt, shape.max, strict=True)):
                if not low <= mid <= high:
                    problems.append(
                        ShapeProblem(
                            path,
                            f"{name}.{axis}: min {low}, opt {mid}, max {high} are not in order",
                            "min ≤ opt ≤ max",
                        )
                    )
                elif low < 0 or (low == 0 and low != high):
                    problems.append(
                        ShapeProblem(
                            path, f"{name}.{axis}: a dynamic dim cannot have min {low}", "the smallest min is 1"
                        )
                    )
            rank, first = ranks.setdefault(name, (len(shape.min), profile.name))
            if rank != len(shape.min):
                problems.append(
                    ShapeProblem(
                        path,
                        f"{name!r} has {len(shape.min)} axes here and {rank} in profile {first!r}",
                        "an input has one rank in all profiles",
                    )
                )
    return problems


def _symbols(
    inputs: Sequence[Input], named: dict[tuple[str, int], NamedDim], profiles: Sequence[Profile]
) -> tuple[ShapePlan | None, tuple[ShapeProblem, ...]]:
    problems: list[ShapeProblem] = []
    symbols: list[Symbol] = []
    numbers: dict[str, int] = {}
    first_place: dict[str, tuple[str, int]] = {}
    shapes: list[tuple[Axis, ...]] = []
    by_profile = [dict(profile.shapes) for profile in profiles]
    for entry in inputs:
        axes: list[Axis] = []
        for axis in range(len(by_profile[0][entry.name].min)):
            ranges = [(p[entry.name].min[axis], p[entry.name].opt[axis], p[entry.name].max[axis]) for p in by_profile]
            low, high = min(r[0] for r in ranges), max(r[2] for r in ranges)
            dim = named.get((entry.name, axis))
            if dim is not None:
                for profile, sizes in zip(profiles, ranges, strict=True):
                    if any(size % dim.multiple_of for size in sizes):
                        problems.append(
                            ShapeProblem(
                                f"profiles.{profile.name}.{entry.name}",
                                f"{entry.name}.{axis} is dim {dim.name!r}, a multiple of {dim.multiple_of}; min, opt and "
                                f"max are {', '.join(map(str, sizes))}",
                                f"write multiples of {dim.multiple_of}",
                            )
                        )
                earlier = first_place.setdefault(dim.name, (entry.name, axis))
                _same_in_all_profiles(dim, earlier, (entry.name, axis), profiles, problems)
            if low == high:
                axes.append(low)
                continue
            name = dim.name if dim else f"{entry.name}_{axis}"
            if name not in numbers:
                numbers[name] = len(symbols)
                unit = dim.multiple_of if dim else 1
                symbols.append(Symbol(name, low, high, _example(ranges[0][1], low, high, unit), unit))
            axes.append(SymbolAxis(numbers[name]))
        shapes.append(tuple(axes))
    if problems:
        return None, tuple(problems)
    return ShapePlan(tuple(symbols), tuple(shapes)), ()


def _same_in_all_profiles(
    dim: NamedDim,
    one: tuple[str, int],
    other: tuple[str, int],
    profiles: Sequence[Profile],
    problems: list[ShapeProblem],
) -> None:
    for profile in profiles:
        shapes = dict(profile.shapes)
        ranges = [
            (shapes[name].min[axis], shapes[name].opt[axis], shapes[name].max[axis]) for name, axis in (one, other)
        ]
        if ranges[0] != ranges[1]:
            said = [f"{n}.{a} is {r[0]}..{r[1]}..{r[2]}" for (n, a), r in zip((one, other), ranges, strict=True)]
            problems.append(
                ShapeProblem(
                    f"profiles.{profile.name}.{other[0]}",
                    f"dim {dim.name!r} has different ranges: {said[0]}, {said[1]}",
                    "the places of one dim have the same min, opt and max",
                )
            )


def _example(opt: int, low: int, high: int, unit: int) -> int:
    if opt // unit >= 2:
        return opt
    return min(max(2 * unit, low), high)
