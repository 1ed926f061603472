"""The points and weights at which the lower step compares a lowered program with the traced one.

They are in no key: lowering depends on the graph alone, and the comparison only checks its result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Model
from trtbuild.core.planning.expand import units
from trtbuild.core.recipes import keys
from trtbuild.core.values.value_ranges import ValueRange

#: A model with more weight elements than this (2 GiB of float32) is not compared: a forward pass would take too long.
_LARGEST = 1 << 29


@dataclass(frozen=True)
class ComparedAt:
    """A point: its name for messages, each input's shape there, and the symbols' numbers."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Comparison:
    """`inputs` are names and dtypes, `ranges` the values that some take, `weights` the model's by slot."""

    inputs: tuple[tuple[str, str], ...]
    ranges: Mapping[str, ValueRange]
    points: tuple[ComparedAt, ...]
    weights: tuple[Weight, ...]


def comparison(model: Model, shapes: ShapePlan, weights: Sequence[Weight]) -> Comparison | None:
    """What the lowered program of `model` is compared by; None for a model that is not compared."""
    if model.source.form != "program" or sum(math.prod(weight.shape) for weight in weights) > _LARGEST:
        return None
    return Comparison(
        inputs=tuple((entry.name, entry.dtype) for entry in model.inputs),
        ranges={entry.name: entry.range for entry in model.inputs if entry.range is not None},
        points=tuple(
            ComparedAt(name, shapes.sizes(sizes), units(shapes, sizes))
            for name, sizes in _points(model, shapes).items()
        ),
        weights=tuple(weights),
    )


def _points(model: Model, shapes: ShapePlan) -> dict[str, tuple[int, ...]]:
    """The smallest sizes that the trace was proven at, and one step above them.

    A pass that depended on a size of 1, on a remainder or on two equal sizes gives other numbers at the second point.
    """
    smallest = min(map(tuple, keys.proof_points(model, shapes)), key=lambda point: _elements(shapes, point))
    above = tuple(
        min(size + symbol.multiple_of, symbol.max) for size, symbol in zip(smallest, shapes.symbols, strict=True)
    )
    return {"its smallest sizes": smallest} | ({} if above == smallest else {"sizes a step above its smallest": above})


def _elements(shapes: ShapePlan, sizes: Sequence[int]) -> int:
    return sum(math.prod(shape) for shape in shapes.sizes(sizes))
