"""Axes that must be equal in a model are tied (they become one dim) if they are declared alike."""

from __future__ import annotations

import pytest

from tests.stages.trace.conftest import make_job, trace_in_process
from trtbuild.core.model.declared_shapes import derive
from trtbuild.core.model.shapes import ShapePlan, Symbol, SymbolAxis, pairs_of_separate_symbols
from trtbuild.core.model.spec import Input, NamedDim, Profile, ShapeRange
from trtbuild.errors import SourceError

SHAPE = ((1, 3), (4, 3), (8, 3))


def add(x, y):
    return x + y


def test_axes_that_are_declared_alike_are_tied():
    traced = trace_in_process(add, make_job({"x": SHAPE, "y": SHAPE}))
    assert traced.interface["ties"] == [[1, 0]]  # symbol 1 (the axis y.0) equals symbol 0 (the axis x.0)
    assert [entry["name"] for entry in traced.interface["symbols"]] == ["x_0"]
    assert [entry["shape"] for entry in traced.interface["inputs"]] == [[["sym", 0], 3]] * 2


def test_three_axes_are_tied_and_the_other_axes_keep_their_dims():
    shape = ((1, 2), (4, 6), (8, 9))
    traced = trace_in_process(
        lambda x, y, z: (x[:, :1] + y[:, :1] + z[:, :1], y), make_job(dict.fromkeys("xyz", shape))
    )
    inputs = [entry["shape"][0] for entry in traced.interface["inputs"]]
    assert inputs == [["sym", 0]] * 3
    assert len(traced.interface["symbols"]) == 4


def test_the_interface_of_a_program_without_ties_has_no_entry_for_ties():
    assert "ties" not in trace_in_process(lambda x, y: (x * 2, y), make_job({"x": SHAPE, "y": SHAPE})).interface


def test_axes_whose_range_ends_at_two_are_tied():
    small = ((1, 3), (2, 3), (2, 3))
    traced = trace_in_process(add, make_job({"x": small, "y": small}))
    assert traced.interface["ties"] == [[1, 0]]


@pytest.mark.parametrize("other", [((1, 3), (4, 3), (9, 3)), ((2, 3), (4, 3), (8, 3))])
def test_axes_with_other_ranges_are_not_tied(other):
    with pytest.raises(SourceError, match="must always be as long as"):
        trace_in_process(add, make_job({"x": SHAPE, "y": other}))


def test_axes_with_another_range_in_one_profile_are_not_tied():
    profiles = [{"x": SHAPE, "y": SHAPE}, {"x": ((2, 3), (4, 3), (8, 3)), "y": ((1, 3), (4, 3), (8, 3))}]
    with pytest.raises(SourceError, match="must always be as long as"):
        trace_in_process(add, make_job(profiles))


def test_dims_with_names_are_tied_and_the_first_name_stays():
    dims = [NamedDim("batch", (("x", 0),)), NamedDim("rows", (("y", 0),))]
    traced = trace_in_process(add, make_job({"x": SHAPE, "y": SHAPE}, dims=dims))
    assert [entry["name"] for entry in traced.interface["symbols"]] == ["batch"]


def test_symbols_whose_opts_differ_in_a_later_profile_must_not_be_tied():
    profiles = [
        Profile(name, (("x", ShapeRange((1,), (x_opt,), (8,))), ("y", ShapeRange((1,), (y_opt,), (8,)))))
        for name, x_opt, y_opt in (("first", 4, 4), ("later", 2, 3))
    ]
    plan, _ = derive([Input("x"), Input("y")], (), profiles)
    assert plan is not None
    assert pairs_of_separate_symbols(plan, profiles) == ((0, 1),)
    assert pairs_of_separate_symbols(plan, profiles[:1]) == ()


@pytest.mark.parametrize("differing_end", ["min", "max"])
def test_symbols_whose_min_or_max_differs_in_one_profile_must_not_be_tied(differing_end: str) -> None:
    low, high = (2 if differing_end == "min" else 1), (7 if differing_end == "max" else 8)
    wide, narrow = ShapeRange((1,), (4,), (8,)), ShapeRange((low,), (4,), (high,))
    profiles = [
        Profile("first", (("x", wide), ("y", wide))),
        Profile("later", (("x", wide), ("y", narrow))),
    ]
    plan, _ = derive([Input("x"), Input("y")], (), profiles)
    assert plan is not None
    assert pairs_of_separate_symbols(plan, profiles) == ((0, 1),)


def test_a_plan_with_ties_numbers_the_remaining_symbols_from_0():
    symbols = tuple(Symbol(name, 1, 8, 4) for name in "abcd")
    plan = ShapePlan(symbols, ((SymbolAxis(0), SymbolAxis(1)), (SymbolAxis(2), 5, SymbolAxis(3))))
    tied = plan.merge_ties([(3, 1), (2, 0)])
    assert [symbol.name for symbol in tied.symbols] == ["a", "b"]
    assert tied.shapes == ((SymbolAxis(0), SymbolAxis(1)), (SymbolAxis(0), 5, SymbolAxis(1)))
    assert plan.merge_ties([(3, 2), (2, 1), (1, 0)]).shapes == (
        (SymbolAxis(0), SymbolAxis(0)),
        (SymbolAxis(0), 5, SymbolAxis(0)),
    )
