"""The points at which a lowered program is compared with the traced program."""

from __future__ import annotations

import pytest

from tests.core.recipe_values import MODEL
from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.model.declared_shapes import derive
from trtbuild.core.planning.comparison import make_comparison


@pytest.mark.parametrize(("elements", "points"), [(1 << 24, 2), ((1 << 24) + 1, 1)])
def test_a_model_with_more_than_2_24_weight_elements_is_compared_at_its_smallest_sizes_only(
    elements: int, points: int
) -> None:
    shapes, _ = derive(MODEL.inputs, MODEL.dims, MODEL.profiles)
    assert shapes is not None
    result = make_comparison(MODEL, shapes, [Weight("float32", (elements,), "a" * 64)])
    assert result is not None
    assert [point.name for point in result.points] == ["its smallest sizes", "sizes a step above its smallest"][:points]


def test_a_model_whose_forward_pass_would_take_too_long_is_not_compared() -> None:
    shapes, _ = derive(MODEL.inputs, MODEL.dims, MODEL.profiles)
    assert shapes is not None
    assert make_comparison(MODEL, shapes, [Weight("float32", ((1 << 29) + 1,), "a" * 64)]) is None
    assert make_comparison(MODEL, shapes, [Weight("float32", (1 << 29,), "a" * 64)]) is not None
