"""Derives the dimensions of a model from its profiles: the dynamic axes, the symbols that they share, and their ranges.

A profile has a min, an opt and a max shape for each input. A dim is a dynamic dimension. In a graph, a symbol stands for a
dim.

Rules
1. A dim's range begins with its smallest min in all profiles, and ends with its largest max. If both are the same number,
   the axis is static. A dynamic axis has a min of at least 1.
2. Several axes may share a named dim. In each profile, they must have the same min, the same opt and the same max.
3. A dynamic axis without a named dim gets the name ``<input>_<axis>``. If a dim has that name, ``_`` is appended.
4. ``multiple_of: k`` means that every size is a multiple of k, including each min, opt and max. The size divided by k is
   the size in units.
5. The example of a dim is the size with which the model is traced: the first profile's opt. If this opt is 0 or 1 units,
   the example is the smallest legal size of at least 2 units, because torch.export specializes sizes 0 and 1.
6. Symbols are numbered in the order of their first appearance in the inputs' axes, so that names do not change keys.
7. All problems are reported at once. A problem of one input or dim does not stop the checks of other inputs and dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtbuild.core.model.shapes import MIN_OPT_MAX, Axis, MinOptMax, ShapePlan, Symbol, SymbolAxis
from trtbuild.core.model.spec import Input, NamedDim, Profile, ShapeRange


@dataclass(frozen=True)
class ShapeProblem:
    """A problem of the declared shapes.

    A problem of a dim has `dim` and `axis_name`, an axis that the dim names (``<input>.<axis>``). A problem of an input in
    a profile has `profile` and `input`. `shape_kind` is the first wrong shape (min, opt or max), or None if no shape can be
    named. `axis` is the number of the wrong axis, or None if the problem is not about one axis.
    """

    text: str
    hint: str | None = None
    dim: str | None = None
    axis_name: str | None = None
    profile: str | None = None
    input: str | None = None
    shape_kind: MinOptMax | None = None
    axis: int | None = None

    @property
    def path(self) -> str:
        """The key of the dim or input in `Model.places`: ``dims.<dim>`` or ``profiles.<profile>.<input>``."""
        return f"dims.{self.dim}" if self.dim is not None else f"profiles.{self.profile}.{self.input}"


def derive(
    inputs: Sequence[Input], dims: Sequence[NamedDim], profiles: Sequence[Profile]
) -> tuple[ShapePlan | None, tuple[ShapeProblem, ...]]:
    """Return the shape plan of a model and no problems, or None and all problems.

    There must be at least one profile. Every profile must have exactly the shapes of `inputs`, in their order.
    """
    ranks, problems = _check_ranks(profiles)
    invalid_inputs = {problem.input for problem in problems}
    named_axes = _named_axes(inputs, dims, ranks, problems)
    valid_ranks = {name: rank for name, rank in ranks.items() if name not in invalid_inputs}
    plan = _build_plan(inputs, named_axes, profiles, valid_ranks, problems)
    return (None, tuple(problems)) if problems else (plan, ())


def _check_ranks(profiles: Sequence[Profile]) -> tuple[dict[str, int], list[ShapeProblem]]:
    """The rank of each input whose rank is consistent, and the problems of ranks and ranges in the profiles."""
    problems: list[ShapeProblem] = []
    ranks: dict[str, tuple[int, str]] = {}
    inconsistent: set[str] = set()
    for profile in profiles:
        for name, shape in profile.shapes:
            if not len(shape.min) == len(shape.opt) == len(shape.max):
                counts = [len(getattr(shape, which)) for which in MIN_OPT_MAX]
                # The problem is reported at the shape whose length differs from the lengths of both others.
                differing = next(
                    (which for which, count in zip(MIN_OPT_MAX, counts, strict=True) if counts.count(count) == 1), None
                )
                problems.append(
                    ShapeProblem(
                        f"min, opt and max of {name!r} have {counts[0]}, {counts[1]} and {counts[2]} axes",
                        "write the same number of axes",
                        profile=profile.name,
                        input=name,
                        shape_kind=differing if len(set(counts)) == 2 else None,
                    )
                )
                inconsistent.add(name)
                continue
            problems += _range_problems(profile.name, name, shape)
            rank, first = ranks.setdefault(name, (len(shape.min), profile.name))
            if rank != len(shape.min):
                inconsistent.add(name)
                problems.append(
                    ShapeProblem(
                        f"{name!r} has rank {len(shape.min)} here and {rank} in profile {first!r}",
                        "an input has one rank in all profiles",
                        profile=profile.name,
                        input=name,
                    )
                )
    return {name: rank for name, (rank, _) in ranks.items() if name not in inconsistent}, problems


def _range_problems(profile: str, name: str, shape: ShapeRange) -> list[ShapeProblem]:
    problems: list[ShapeProblem] = []
    for axis, (min_size, opt_size, max_size) in enumerate(zip(shape.min, shape.opt, shape.max, strict=True)):
        text, hint, shape_kind = "", "", MIN_OPT_MAX[0]
        if not min_size <= opt_size <= max_size:
            text = f"{name}.{axis}: min {min_size}, opt {opt_size}, max {max_size} are not in order"
            hint = "min ≤ opt ≤ max"
            # Report the first size without which the other two are in order. If there is no such size, report max.
            shape_kind = "min" if opt_size <= max_size else "opt" if min_size <= max_size else "max"
        elif min_size < 0:
            text, hint = f"{name}.{axis}: a size cannot be {min_size}", "sizes are at least 0, dynamic ones at least 1"
        elif min_size == 0 and max_size > 0:
            text, hint = f"{name}.{axis}: a dynamic dim cannot have min 0", "the smallest min is 1"
        if text:
            problems.append(ShapeProblem(text, hint, profile=profile, input=name, shape_kind=shape_kind, axis=axis))
    return problems


def _named_axes(
    inputs: Sequence[Input], dims: Sequence[NamedDim], ranks: dict[str, int], problems: list[ShapeProblem]
) -> dict[tuple[str, int], NamedDim]:
    """(input, axis) → the named dim of that axis. Adds the problems with the places of dims to `problems`."""
    input_names = [entry.name for entry in inputs]
    named_axes: dict[tuple[str, int], NamedDim] = {}
    for dim in dims:
        for name, axis in dim.at:
            text, hint = "", ""
            if name not in input_names:
                text = f"dim {dim.name!r} is at {name}.{axis}, but there is no input {name!r}"
                hint = f"the inputs are: {', '.join(input_names)}"
            elif name in ranks and not 0 <= axis < ranks[name]:
                text = f"dim {dim.name!r} is at {name}.{axis}, but {name!r} has {ranks[name]} axes"
                hint = f"axes are 0 to {ranks[name] - 1}" if ranks[name] else f"{name!r} is a scalar"
            elif (name, axis) in named_axes:
                text = f"{name}.{axis} is in dim {named_axes[name, axis].name!r} and in dim {dim.name!r}"
                hint = "name one dim for each axis"
            if text:
                problems.append(ShapeProblem(text, hint, dim=dim.name, axis_name=f"{name}.{axis}"))
            else:
                named_axes[name, axis] = dim
    return named_axes


#: The min, the opt and the max of an axis in one profile.
Sizes = tuple[int, int, int]


def _sizes(profile: Profile, name: str, axis: int) -> Sizes:
    shape = dict(profile.shapes)[name]
    return shape.min[axis], shape.opt[axis], shape.max[axis]


def _build_plan(
    inputs: Sequence[Input],
    named_axes: dict[tuple[str, int], NamedDim],
    profiles: Sequence[Profile],
    ranks: dict[str, int],
    problems: list[ShapeProblem],
) -> ShapePlan:
    """The shape plan. Adds problems to `problems`. The plan is valid only if `problems` is empty afterwards."""
    dim_names = {dim.name for dim in named_axes.values()}
    symbols: list[Symbol] = []
    numbers: dict[str, int] = {}  # name of a symbol → its position in `symbols`
    first_place: dict[str, tuple[str, int]] = {}  # name of a dim → its first axis: input and number
    shapes: list[tuple[Axis, ...]] = []
    for entry in inputs:
        axes: list[Axis] = []
        for axis in range(ranks.get(entry.name, 0)):
            mins, opts, maxes = zip(*(_sizes(profile, entry.name, axis) for profile in profiles), strict=True)
            smallest, largest = min(mins), max(maxes)
            dim = named_axes.get((entry.name, axis))
            if dim is not None:
                _check_multiples(dim, (entry.name, axis), profiles, problems)
                first = first_place.setdefault(dim.name, (entry.name, axis))
                _check_equal_ranges(dim, first, (entry.name, axis), profiles, problems)
            if smallest == largest:
                axes.append(smallest)
                continue
            if smallest == 0:  # one profile has the static size 0, and another has a larger size: each alone is valid
                problems.append(_problem_of_min_0(profiles[mins.index(0)].name, entry.name, axis))
            name = dim.name if dim else f"{entry.name}_{axis}"
            while dim is None and name in dim_names:
                name += "_"
            if name not in numbers:
                numbers[name] = len(symbols)
                unit = dim.multiple_of if dim else 1
                example = _example_size(opts[0], smallest, largest, unit)
                symbols.append(Symbol(name, smallest, largest, example, unit))
            axes.append(SymbolAxis(numbers[name]))
        shapes.append(tuple(axes))
    return ShapePlan(tuple(symbols), tuple(shapes))


def _problem_of_min_0(profile: str, name: str, axis: int) -> ShapeProblem:
    return ShapeProblem(
        f"{name}.{axis}: a dynamic dim cannot have min 0",
        "the smallest min is 1",
        profile=profile,
        input=name,
        shape_kind="min",
        axis=axis,
    )


def _check_multiples(
    dim: NamedDim, at: tuple[str, int], profiles: Sequence[Profile], problems: list[ShapeProblem]
) -> None:
    name, axis = at
    for profile in profiles:
        sizes = _sizes(profile, name, axis)
        wrong_kinds = [which for which, size in zip(MIN_OPT_MAX, sizes, strict=True) if size % dim.multiple_of]
        if wrong_kinds:
            values = ", ".join(f"{which} {size}" for which, size in zip(MIN_OPT_MAX, sizes, strict=True))
            fixes = [_nearest_multiples(sizes[MIN_OPT_MAX.index(which)], dim.multiple_of) for which in wrong_kinds]
            problems.append(
                ShapeProblem(
                    f"{name}.{axis} is dim {dim.name!r}, a multiple of {dim.multiple_of}, but has {values}",
                    "write " + ", ".join(fixes),
                    profile=profile.name,
                    input=name,
                    shape_kind=wrong_kinds[0],
                    axis=axis,
                )
            )


def _nearest_multiples(size: int, unit: int) -> str:
    below = size - size % unit
    return f"{below} or {below + unit} instead of {size}" if below else f"{unit} instead of {size}"


def _check_equal_ranges(
    dim: NamedDim,
    first: tuple[str, int],
    second: tuple[str, int],
    profiles: Sequence[Profile],
    problems: list[ShapeProblem],
) -> None:
    for profile in profiles:
        ranges = [_sizes(profile, *place) for place in (first, second)]
        if ranges[0] != ranges[1]:
            range_texts = [
                f"{name}.{axis} is {'..'.join(map(str, sizes))}"
                for (name, axis), sizes in zip((first, second), ranges, strict=True)
            ]
            differing = next(which for which, a, b in zip(MIN_OPT_MAX, *ranges, strict=True) if a != b)
            problems.append(
                ShapeProblem(
                    f"dim {dim.name!r} has different ranges: {range_texts[0]}, {range_texts[1]} (min..opt..max)",
                    "all places of a dim have the same min, opt and max",
                    profile=profile.name,
                    input=second[0],
                    shape_kind=differing,
                    axis=second[1],
                )
            )


def _example_size(opt: int, low: int, high: int, unit: int) -> int:
    """The size with which the model is traced (rule 5)."""
    if opt // unit >= 2:
        return opt
    return min(max(2 * unit, low), high)
