"""The comparison of a converted model with its original."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.version_converter
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


@pytest.mark.parametrize("is_first", [True, False])
def test_a_branch_that_is_not_taken_is_checked_too(is_first: bool) -> None:
    """onnx's converter keeps an attribute that AveragePool has since opset 19. Older parsers ignore it."""
    names = ("then_branch", "else_branch") if is_first else ("else_branch", "then_branch")
    y = h.make_tensor_value_info("y", T.FLOAT, [1, 1, None])
    pool = h.make_node("AveragePool", ["x"], ["y"], kernel_shape=[2], dilations=[2])
    branches = [h.make_graph([node], "g", [], [y]) for node in (pool, h.make_node("Neg", ["x"], ["y"]))]
    node = h.make_node("If", ["c"], ["z"], **dict(zip(names, branches, strict=True)))
    inputs = [h.make_tensor_value_info("x", T.FLOAT, [1, 1, 8]), h.make_tensor_value_info("c", T.BOOL, [])]
    graph = h.make_graph([node], "g", inputs, [h.make_tensor_value_info("z", T.FLOAT, [1, 1, None])])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 19)], ir_version=9)
    with pytest.raises(ConversionRefused, match="an invalid model: Unrecognized attribute: dilations"):
        refuse_change(model, onnx.version_converter.convert_version(model, 17), [[1, 1, 8], []], 17)
