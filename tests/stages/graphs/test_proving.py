"""The comparison of a converted model with its original."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from trtbuild.errors import ConversionRefused
from trtbuild.stages.graphs.proving import refuse_change

INF, NAN = float("inf"), float("nan")


def model_of(result: list[float], element: int) -> onnx.ModelProto:
    """A model that returns `result` for every input."""
    nodes = [
        h.make_node("Constant", [], ["c"], value=h.make_tensor("c", T.FLOAT, [len(result)], result)),
        h.make_node("Cast", ["c"], ["y"], to=element),
    ]
    infos = [h.make_tensor_value_info("x", T.FLOAT, [1]), h.make_tensor_value_info("y", element, [len(result)])]
    graph = h.make_graph(nodes, "g", infos[:1], infos[1:])
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)])


@pytest.mark.parametrize("element", [T.FLOAT, T.FLOAT16, T.DOUBLE])
@pytest.mark.parametrize(
    ("result", "reference"),
    [
        ([INF, 1.0], [-INF, 1.0]),
        ([NAN, 1.0], [INF, 1.0]),
        ([INF, 1.0], [NAN, 1.0]),
        ([NAN, 1.0], [1.0, NAN]),
        ([1.0, INF], [1.0, 1.0]),
    ],
)
def test_other_infinities_or_nans_are_a_change(result: list[float], reference: list[float], element: int) -> None:
    models = model_of(reference, element), model_of(result, element)
    with pytest.raises(ConversionRefused, match="output 0 has NaN or infinities at other places"):
        refuse_change(*models, [[1]], 17)


@pytest.mark.parametrize("element", [T.FLOAT, T.FLOAT16, T.DOUBLE])
def test_equal_infinities_and_nans_are_not_a_change(element: int) -> None:
    before, after = model_of([INF, -INF, NAN, 1.0], element), model_of([INF, -INF, NAN, 1.0], element)
    refuse_change(before, after, [[1]], 17)
    with pytest.raises(ConversionRefused, match="a relative difference of"):
        refuse_change(before, model_of([INF, -INF, NAN, 1.1], element), [[1]], 17)


def test_the_difference_is_relative_to_the_largest_finite_number() -> None:
    before = model_of([INF, 1000.0, 1.0], T.FLOAT)
    refuse_change(before, model_of([INF, 1000.0, 1.0 + 1e-3], T.FLOAT), [[1]], 17)
    assert not np.isclose(np.float32(1.0 + 1e-3), 1.0)
    with pytest.raises(ConversionRefused, match=r"a relative difference of 0\.001"):
        refuse_change(before, model_of([INF, 1001.0, 1.0], T.FLOAT), [[1]], 17)
