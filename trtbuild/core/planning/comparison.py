"""The points and weights with which the lower step compares a lowered program with the traced program.

The points and weights are not in any key, because the comparison does not change the result of lowering.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.model.shapes import ShapePlan, proof_points
from trtbuild.core.model.spec import Model
from trtbuild.core.model.state import NO_STATE, StateInputs
from trtbuild.core.planning.expand import symbol_values
from trtbuild.core.values.value_ranges import ValueRange

#: A model with more weight elements than this (2 GiB of float32) is not compared, because a forward pass would take
#: too long.
_MAX_ELEMENTS = 1 << 29

#: A model with more weight elements than this (64 MiB of float32) is compared at one point only. One point is enough,
#: because the same passes lower smaller models, which are compared at two points.
_MAX_ELEMENTS_AT_TWO_POINTS = 1 << 24


@dataclass(frozen=True)
class ComparisonPoint:
    """The sizes for one comparison: a name for messages, and the shape of each input.

    `numbers` are the values of the graph's symbols. A dim with ``multiple_of: k`` is k times its symbol."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Comparison:
    """The data for comparing a lowered program with the traced program.

    `inputs` has names and dtypes. The last inputs are the model's state. `ranges` maps inputs to the declared ranges of
    their values. `weights` are the model's weights by slot (the number of a weight in the traced program)."""

    inputs: tuple[tuple[str, str], ...]
    ranges: Mapping[str, ValueRange]
    points: tuple[ComparisonPoint, ...]
    weights: tuple[Weight, ...]


def make_comparison(
    model: Model, shapes: ShapePlan, weights: Sequence[Weight], state: StateInputs = NO_STATE
) -> Comparison | None:
    """The points and weights for comparing the lowered program of `model`.

    None for a model that is not compared, because its kind of graph is not lowered, or because its weights are too large.
    `weights` are the weights that the program reads."""
    elements = sum(math.prod(weight.shape) for weight in weights)
    if not model.source.graph.is_lowered or elements > _MAX_ELEMENTS:
        return None
    points = _points(model, shapes)
    if elements > _MAX_ELEMENTS_AT_TWO_POINTS:
        points = points[:1]
    return Comparison(
        inputs=(*((entry.name, entry.dtype) for entry in model.inputs), *state.inputs),
        ranges={
            **{entry.name: entry.range for entry in model.inputs if entry.range is not None},
            **state.ranges,
        },
        points=tuple(
            ComparisonPoint(name, (*shapes.input_shapes(sizes), *state.shapes), symbol_values(shapes, sizes))
            for name, sizes in points
        ),
        weights=tuple(weights),
    )


def _points(model: Model, shapes: ShapePlan) -> list[tuple[str, tuple[int, ...]]]:
    """The name and sizes of one or two points: the smallest point of the trace's proof, and a point with larger sizes.

    The second point has the next larger size of each dim. It is left out if all dims are at their maximum. It reveals
    a lowering pass that wrongly depends on a size of 1, on a remainder or on two equal sizes.
    """
    smallest = min(map(tuple, proof_points(shapes, model.profiles)), key=lambda point: _element_count(shapes, point))
    larger = tuple(
        min(size + symbol.multiple_of, symbol.max) for size, symbol in zip(smallest, shapes.symbols, strict=True)
    )
    points = [("its smallest sizes", smallest)]
    if larger != smallest:
        points.append(("sizes a step above its smallest", larger))
    return points


def _element_count(shapes: ShapePlan, sizes: Sequence[int]) -> int:
    return sum(math.prod(shape) for shape in shapes.input_shapes(sizes))
