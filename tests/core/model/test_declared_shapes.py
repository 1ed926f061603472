"""The rules of core/model/declared_shapes.py, in the order of their numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtbuild.core.model.declared_shapes import ShapeProblem, derive
from trtbuild.core.model.shapes import ShapePlan, Symbol, SymbolAxis, profile_sizes
from trtbuild.core.model.spec import Input, NamedDim, Profile, ShapeRange

Sizes = tuple[int, int, int]


def profile(name: str, **shapes: list[Sizes | int]) -> Profile:
    """Return a profile. Each axis of an input is given as (min, opt, max), or as one size."""
    ranges = []
    for input_name, axes in shapes.items():
        columns = [(axis, axis, axis) if isinstance(axis, int) else axis for axis in axes]
        ranges.append((input_name, ShapeRange(*(tuple(c[i] for c in columns) for i in range(3)))))
    return Profile(name, tuple(ranges))


def plan(profiles: list[Profile], dims: list[NamedDim] | None = None) -> ShapePlan:
    inputs = [Input(name) for name, _ in profiles[0].shapes]
    result, problems = derive(inputs, dims or [], profiles)
    assert problems == ()
    assert result is not None
    return result


def problems_of(profiles: list[Profile], dims: list[NamedDim] | None = None) -> tuple[ShapeProblem, ...]:
    inputs = [Input(name) for name, _ in profiles[0].shapes]
    shapes, problems = derive(inputs, dims or [], profiles)
    assert shapes is None
    assert problems
    return problems


# Rule 1: the range of a dim over all profiles, and static axes.


def test_a_range_is_the_union_of_all_profiles() -> None:
    result = plan([profile("a", x=[(2, 4, 8), 3]), profile("b", x=[(1, 1, 2), 3]), profile("c", x=[(6, 7, 9), 3])])
    assert result.symbols == (Symbol("x_0", 1, 9, 4),)
    assert result.shapes == ((SymbolAxis(0), 3),)


def test_an_axis_is_static_only_if_all_profiles_have_the_same_number() -> None:
    assert plan([profile("a", x=[1, 3]), profile("b", x=[1, 3])]).symbols == ()
    assert plan([profile("a", x=[1, 3]), profile("b", x=[1, 4])]).symbols == (Symbol("x_1", 3, 4, 3),)


def test_a_dynamic_min_of_0_is_refused_in_one_profile_and_across_profiles() -> None:
    (problem,) = problems_of([profile("a", x=[5, (0, 1, 2)])])
    assert (problem.path, problem.shape_kind, problem.axis) == ("profiles.a.x", "min", 1)
    (problem,) = problems_of([profile("a", x=[4]), profile("b", x=[0])])
    assert (problem.path, problem.text) == ("profiles.b.x", "x.0: a dynamic dim cannot have min 0")
    assert plan([profile("a", x=[0, 2])]).shapes == ((0, 2),)


def test_sizes_are_in_order_and_not_negative() -> None:
    (problem,) = problems_of([profile("a", x=[(1, 5, 4)])])
    assert (problem.shape_kind, problem.text) == ("opt", "x.0: min 1, opt 5, max 4 are not in order")
    (problem,) = problems_of([profile("a", x=[(5, 5, 4)])])
    assert problem.shape_kind == "max"
    (problem,) = problems_of([profile("a", x=[-1])])
    assert "a size cannot be -1" in problem.text


def test_ranks_agree_within_and_across_profiles() -> None:
    uneven = Profile("a", (("x", ShapeRange((1,), (1, 2), (1, 2))),))
    (problem,) = problems_of([uneven])
    assert (problem.shape_kind, problem.text) == ("min", "min, opt and max of 'x' have 1, 2 and 2 axes")
    (problem,) = problems_of([Profile("a", (("x", ShapeRange((), (1,), (1, 2))),))])
    assert problem.shape_kind is None
    (problem,) = problems_of([profile("a", x=[1]), profile("b", x=[1, 2])])
    assert (problem.path, problem.text) == ("profiles.b.x", "'x' has rank 2 here and 1 in profile 'a'")


def test_a_scalar_has_no_axes() -> None:
    assert plan([profile("a", x=[])]).shapes == ((),)
    (problem,) = problems_of([profile("a", x=[])], [NamedDim("n", (("x", 0),))])
    assert problem.hint == "'x' is a scalar"


# Rule 2: in each profile, all axes of a dim have the same range.


def test_a_named_dim_is_one_symbol_at_all_its_places() -> None:
    both = NamedDim("seq", (("q", 1), ("k", 0)))
    result = plan([profile("a", q=[2, (1, 4, 10)], k=[(1, 4, 10), (1, 2, 3)])], [both])
    assert result.symbols == (Symbol("seq", 1, 10, 4), Symbol("k_1", 1, 3, 2))
    assert result.shapes == ((2, SymbolAxis(0)), (SymbolAxis(0), SymbolAxis(1)))
    assert result.input_shapes([7, 3]) == ((2, 7), (7, 3))


@pytest.mark.parametrize("other", [(1, 4, 9), (1, 5, 10), (2, 4, 10)])
def test_places_with_different_ranges_are_refused_even_where_only_opt_differs(other: Sizes) -> None:
    both = NamedDim("seq", (("q", 0), ("k", 0)))
    (problem,) = problems_of([profile("a", q=[(1, 4, 10)], k=[other])], [both])
    assert problem.path == "profiles.a.k"
    assert "dim 'seq' has different ranges: q.0 is 1..4..10" in problem.text


def test_places_are_compared_in_each_profile_not_only_in_the_union() -> None:
    both = NamedDim("seq", (("q", 0), ("k", 0)))
    first, second = profile("a", q=[(1, 1, 2)], k=[(1, 2, 4)]), profile("b", q=[(1, 2, 4)], k=[(1, 1, 2)])
    assert [problem.path for problem in problems_of([first, second], [both])] == ["profiles.a.k", "profiles.b.k"]


def test_two_static_places_of_a_dim_must_be_equal_too() -> None:
    both = NamedDim("seq", (("q", 0), ("k", 0)))
    problems_of([profile("a", q=[2], k=[3])], [both])
    assert plan([profile("a", q=[2], k=[2])], [both]).symbols == ()


def test_places_that_do_not_exist_or_belong_to_another_dim_are_refused() -> None:
    shapes = [profile("a", x=[(1, 2, 4), 3])]
    (problem,) = problems_of(shapes, [NamedDim("n", (("y", 0),))])
    assert (problem.path, problem.axis_name) == ("dims.n", "y.0")
    assert "there is no input 'y'" in problem.text
    (problem,) = problems_of(shapes, [NamedDim("n", (("x", 2),))])
    assert (problem.text, problem.hint) == ("dim 'n' is at x.2, but 'x' has 2 axes", "axes are 0 to 1")
    (problem,) = problems_of(shapes, [NamedDim("n", (("x", 0),)), NamedDim("m", (("x", 0),))])
    assert problem.text == "x.0 is in dim 'n' and in dim 'm'"


# Rule 3: names of axes without a dim.


def test_an_unnamed_axis_never_shares_the_symbol_of_a_dim_of_that_name() -> None:
    result = plan([profile("a", x=[(1, 2, 4), (1, 3, 9)])], [NamedDim("x_0", (("x", 1),))])
    assert result.symbols == (Symbol("x_0_", 1, 4, 2), Symbol("x_0", 1, 9, 3))
    assert result.shapes == ((SymbolAxis(0), SymbolAxis(1)),)


# Rule 4: multiples.


def test_multiples_are_checked_in_min_opt_and_max_of_every_profile() -> None:
    dim = NamedDim("h", (("x", 0),), 32)
    assert plan([profile("a", x=[(64, 320, 640)])], [dim]).symbols == (Symbol("h", 64, 640, 320, 32),)
    for sizes in ((60, 320, 640), (64, 321, 640), (64, 320, 650)):
        (problem,) = problems_of([profile("ok", x=[64]), profile("a", x=[sizes])], [dim])
        assert problem.path == "profiles.a.x"
        assert "a multiple of 32" in problem.text
    (problem,) = problems_of([profile("a", x=[(7, 64, 640)])], [dim])
    assert problem.hint == "write 32 instead of 7"
    problems_of([profile("a", x=[33])], [dim])


# Rule 5: examples.


@pytest.mark.parametrize(
    ("sizes", "unit", "example"),
    [
        ((1, 8, 32), 1, 8), ((1, 1, 32), 1, 2), ((1, 1, 2), 1, 2), ((1, 2, 2), 1, 2), ((3, 3, 9), 1, 3),
        ((32, 32, 640), 32, 64), ((32, 64, 640), 32, 64), ((32, 32, 64), 32, 64), ((64, 96, 128), 32, 96),
    ],
)  # fmt: skip
def test_an_example_is_opt_or_the_smallest_legal_size_of_at_least_two_units(
    sizes: Sizes, unit: int, example: int
) -> None:
    result = plan([profile("a", x=[sizes])], [NamedDim("n", (("x", 0),), unit)])
    assert result.symbols[0].example == example
    assert result.example_shapes == ((example,),)


def test_the_example_comes_from_the_first_profile() -> None:
    assert plan([profile("a", x=[1]), profile("b", x=[(1, 8, 32)])]).symbols[0].example == 2
    assert plan([profile("b", x=[(1, 8, 32)]), profile("a", x=[1])]).symbols[0].example == 8


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=3),
    st.integers(1, 4),
)
def test_an_example_is_always_legal(ranges: list[Sizes], unit: int) -> None:
    sizes = [tuple(size * unit for size in sorted(entry)) for entry in ranges]
    profiles = [profile(f"p{number}", x=[entry]) for number, entry in enumerate(sizes)]  # type: ignore[list-item]
    result = plan(profiles, [NamedDim("n", (("x", 0),), unit)])
    for symbol in result.symbols:
        assert symbol.min <= symbol.example <= symbol.max
        assert symbol.example % unit == 0
        assert symbol.example // unit >= 2


# Rule 6: numbering.


def test_symbols_are_numbered_by_first_appearance_not_by_name() -> None:
    profiles = [profile("a", x=[(1, 2, 3), (1, 2, 3)], y=[(1, 2, 3), (1, 3, 5)])]
    result = plan(profiles, [NamedDim("z", (("y", 1),)), NamedDim("b", (("x", 1), ("y", 0)))])
    renamed = plan(profiles, [NamedDim("c", (("x", 1), ("y", 0))), NamedDim("a", (("y", 1),))])
    assert [symbol.name for symbol in result.symbols] == ["x_0", "b", "z"]
    assert result.shapes == renamed.shapes
    numbers = [axis.symbol for shape in result.shapes for axis in shape if isinstance(axis, SymbolAxis)]
    assert numbers == [0, 1, 1, 2]


def test_profile_sizes_are_the_sizes_of_the_symbols_at_min_opt_and_max() -> None:
    profiles = [profile("a", x=[(1, 2, 3), 7], y=[(4, 5, 6)]), profile("b", x=[9, 7], y=[(1, 1, 2)])]
    result = plan(profiles)
    assert profile_sizes(result, profiles[0], "min") == (1, 4)
    assert profile_sizes(result, profiles[0], "max") == (3, 6)
    assert profile_sizes(result, profiles[1], "opt") == (9, 1)
    assert result.input_shapes(profile_sizes(result, profiles[1], "max")) == ((9, 7), (2,))


# Rule 7: all problems at once.


def test_all_problems_are_reported_at_once() -> None:
    problems = problems_of(
        [profile("a", x=[(5, 4, 8), 1], y=[(0, 1, 2)], z=[(1, 2, 3)], w=[(3, 4, 5)])],
        [NamedDim("n", (("x", 2),)), NamedDim("m", (("v", 0),)), NamedDim("k", (("z", 0), ("w", 0)), 2)],
    )
    report = "\n".join(f"{problem.path}: {problem.text}" for problem in problems)
    for words in (
        "profiles.a.x: x.0: min 5, opt 4, max 8 are not in order",
        "profiles.a.y: y.0: a dynamic dim cannot have min 0",
        "dims.n: dim 'n' is at x.2, but 'x' has 2 axes",
        "dims.m: dim 'm' is at v.0, but there is no input 'v'",
        "profiles.a.z: z.0 is dim 'k', a multiple of 2, but has min 1, opt 2, max 3",
        "profiles.a.w: dim 'k' has different ranges",
    ):
        assert words in report, report
