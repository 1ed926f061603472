"""ONNX models whose operators TensorRT's parser computes differently are rewritten or refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from trtbuild.errors import ConversionRefused
from trtbuild.stages.graphs.parser.form import parser_form


def _model(node: onnx.NodeProto, shape: Sequence[int | str], opset: int, element: int = T.FLOAT) -> onnx.ModelProto:
    """A model of one node with the input x and the output y."""
    initializers = [
        onnx.numpy_helper.from_array(np.array([value], np.float32), name) for name, value in _NUMBERS.items()
    ]
    initializers.append(onnx.numpy_helper.from_array(_KERNEL, "kernel"))
    graph = h.make_graph(
        [node],
        "g",
        [h.make_tensor_value_info("x", element, shape)],
        [h.make_tensor_value_info("y", element, [None] * len(shape))],
        [tensor for tensor in initializers if tensor.name in node.input],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=8)


_NUMBERS = {"tenth": 0.1, "four": 4.0}
_KERNEL = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)


def _run(model: onnx.ModelProto, x: np.ndarray) -> Any:
    for node in model.graph.node:
        node.name = ""  # several nodes have the name of the node that they replace
    onnx.checker.check_model(model, full_check=True)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


def _parse_errors(model: onnx.ModelProto) -> list[str]:
    """The errors of the parser of TensorRT-RTX."""
    rtx = pytest.importorskip("tensorrt_rtx")
    logger = rtx.Logger(rtx.Logger.ERROR)
    network = rtx.Builder(logger).create_network(0)
    parser = rtx.OnnxParser(network, logger)
    parser.parse(model.SerializeToString())
    return [str(parser.get_error(index)) for index in range(parser.num_errors)]


@pytest.mark.parametrize("opset", [11, 13, 17, 20])
@pytest.mark.parametrize("axis", [1, -1, None])
@pytest.mark.parametrize("element", [T.FLOAT, T.FLOAT16])
def test_a_log_softmax_is_rewritten_without_a_softmax_that_may_be_zero(
    opset: int, axis: int | None, element: int
) -> None:
    attributes = {} if axis is None else {"axis": axis}
    model = _model(h.make_node("LogSoftmax", ["x"], ["y"], name="last", **attributes), ["n", 3, 4], opset, element)
    changed = parser_form(model, opset)
    assert "LogSoftmax" not in {node.op_type for node in changed.graph.node}
    assert {node.name for node in changed.graph.node} == {"last"}
    x = np.random.default_rng(0).permutation(np.linspace(-200, 30, 24)).reshape(2, 3, 4)
    x = x.astype(h.tensor_dtype_to_np_dtype(element))
    expected = _run(model, x)
    assert expected.min() < -110 and np.isfinite(expected).all()
    np.testing.assert_allclose(_run(changed, x), expected, rtol=1e-3, atol=1e-3)


def _pool(operator: str, kernel: int, stride: int, padding: int, **attributes: Any) -> onnx.NodeProto:
    sizes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [padding] * 4}
    return h.make_node(operator, ["x"], ["y"], ceil_mode=1, **sizes, **attributes)


@pytest.mark.parametrize(
    ("node", "size", "ceil_mode"),
    [
        (_pool("MaxPool", 2, 2, 1), 7, 0),
        (_pool("MaxPool", 1, 2, 0), 8, 0),
        (_pool("AveragePool", 2, 3, 0), 9, 0),
        (_pool("MaxPool", 3, 2, 1), 8, 1),
        (_pool("MaxPool", 2, 2, 0), 7, 1),
    ],
)
def test_a_pooling_has_no_ceil_mode_if_onnx_leaves_out_the_last_window(
    node: onnx.NodeProto, size: int, ceil_mode: int
) -> None:
    model = _model(node, ["n", 3, size, size], 19)
    changed = parser_form(model, 19)
    (mode,) = (entry.i for entry in changed.graph.node[0].attribute if entry.name == "ceil_mode")
    assert mode == ceil_mode
    x = np.random.default_rng(0).standard_normal((2, 3, size, size)).astype(np.float32)
    np.testing.assert_array_equal(_run(changed, x), _run(model, x))


@pytest.mark.parametrize(
    ("node", "shape"),
    [(_pool("MaxPool", 2, 2, 1), ["n", 3, "h", 7]), (_pool("MaxPool", 2, 2, 1), ["n", 3, 8, "w"])],
)
def test_a_pooling_that_may_have_a_window_outside_is_refused(node: onnx.NodeProto, shape: list[int | str]) -> None:
    with pytest.raises(ConversionRefused, match="its last window begins after the input"):
        parser_form(_model(node, shape, 19), 19)


@pytest.mark.parametrize(
    ("mode", "padding", "shape", "problem"),
    [
        ("bicubic", "border", ["n", 3, 8, 8], "mode=cubic and padding_mode=border"),
        ("cubic", "border", ["n", 3, 8, 8], "mode=cubic and padding_mode=border"),
        ("bilinear", "zeros", ["n", 3, 4, 8, 8], "its input has four axes"),
        ("bicubic", "zeros", ["n", 3, 8, 8], ""),
        ("bilinear", "border", ["n", 3, 8, 8], ""),
    ],
)
def test_grids_that_tensorrt_samples_differently_are_refused(
    mode: str, padding: str, shape: list[int | str], problem: str
) -> None:
    node = h.make_node("GridSample", ["x", "grid"], ["y"], mode=mode, padding_mode=padding)
    model = _model(node, shape, 16)
    model.graph.input.append(h.make_tensor_value_info("grid", T.FLOAT, ["n", *shape[2:], len(shape) - 2]))
    if problem:
        with pytest.raises(ConversionRefused, match=problem):
            parser_form(model, 16)
        model.graph.input[0].type.tensor_type.ClearField("shape")
        with pytest.raises(ConversionRefused, match=problem):
            parser_form(model, 16)
    else:
        assert parser_form(model, 16) == model


def test_a_remainder_of_floats_is_refused_unless_the_quotient_is_exact() -> None:
    with pytest.raises(ConversionRefused, match="fmod=1"):
        parser_form(_model(h.make_node("Mod", ["x", "tenth"], ["y"], fmod=1), ["n", 4], 19), 19)
    model = _model(h.make_node("Mod", ["x", "four"], ["y"], fmod=1), ["n", 4], 19)
    assert parser_form(model, 19) == model
    integers = _model(h.make_node("Mod", ["x", "x"], ["y"], fmod=1), ["n", 4], 19, T.INT64)
    assert parser_form(integers, 19) == integers


def test_equal_names_in_two_branches_may_have_other_sizes() -> None:
    """The pooling in the first branch leaves out a window. The size in the other branch does not matter."""
    branches = []
    for name, size in (("then", 7), ("else", 8)):
        limits = [
            onnx.numpy_helper.from_array(np.array(numbers), key) for key, numbers in (("a", [0, 0]), ("b", [size] * 2))
        ]
        axes = onnx.numpy_helper.from_array(np.array([2, 3]), "axes")
        part = h.make_node("Slice", ["x", "a", "b", "axes"], ["part"])
        pool = (
            h.make_node("MaxPool", ["part"], [name], **POOLING) if size == 7 else h.make_node("Relu", ["part"], [name])
        )
        result = h.make_tensor_value_info(name, T.FLOAT, [1, 1, None, None])
        branches.append(h.make_graph([part, pool], name, [], [result], [*limits, axes]))
    node = h.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    x, y = (h.make_tensor_value_info(n, T.FLOAT, [1, 1, s, s]) for n, s in (("x", 9), ("y", None)))
    graph = h.make_graph([node], "g", [x, h.make_tensor_value_info("c", T.BOOL, [])], [y])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 20)], ir_version=8)
    with pytest.raises(ConversionRefused, match="ceil_mode=1"):
        parser_form(model, 20)


def test_equal_names_in_two_branches_get_constants_of_their_own() -> None:
    """Both branches have a LogSoftmax with the result z, and each has another axis."""
    result = h.make_tensor_value_info("z", T.FLOAT, [2, 3])
    branches = [
        h.make_graph([h.make_node("LogSoftmax", ["x"], ["z"], axis=axis)], f"axis{axis}", [], [result])
        for axis in (0, 1)
    ]
    node = h.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    x, y = (h.make_tensor_value_info(name, T.FLOAT, [2, 3]) for name in ("x", "y"))
    graph = h.make_graph([node], "g", [x, h.make_tensor_value_info("c", T.BOOL, [])], [y])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    sessions = [onnxruntime.InferenceSession(each.SerializeToString()) for each in (model, parser_form(model, 17))]
    for condition in (True, False):
        inputs = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "c": np.array(condition)}
        expected, value = (session.run(None, inputs)[0] for session in sessions)
        np.testing.assert_allclose(value, expected, rtol=1e-6)


POOLING = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}


@pytest.mark.parametrize("padding", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("size", [14, 15, 16, 17, 18])
def test_a_transposed_convolution_has_the_padding_of_its_output_shape(padding: str, size: int) -> None:
    """ONNX pads the beginning by more if the padding is odd. The parser pads the end, or ignores `output_shape`."""
    attributes = {"strides": [2, 2], "auto_pad": padding, "output_shape": [size, size]}
    model = _model(h.make_node("ConvTranspose", ["x", "kernel"], ["y"], **attributes), ["n", 1, 8, 8], 17)
    changed = parser_form(model, 17)
    names = {entry.name for entry in changed.graph.node[0].attribute}
    total = 17 - size
    assert ("output_shape" in names) == (padding == "NOTSET" and (total <= 0 or total % 2 == 0))
    x = np.random.default_rng(0).standard_normal((2, 1, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(_run(changed, x), _run(model, x), rtol=1e-5, atol=1e-5)


def test_a_padding_depends_on_the_size_that_a_resize_gives_in_float32() -> None:
    """onnx's inference finds the size 6 instead of 7."""
    model = _model(
        h.make_node("ConvTranspose", ["z", "kernel"], ["y"], strides=[2, 2], output_shape=[12, 12]), [1, 1, 5, 5], 17
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 1, 1.4, 1.4], np.float32), "scales"))
    model.graph.node.insert(0, h.make_node("Resize", ["x", "", "scales"], ["z"]))
    changed = parser_form(model, 17)
    x = np.random.default_rng(0).standard_normal((1, 1, 5, 5)).astype(np.float32)
    sessions = [onnxruntime.InferenceSession(each.SerializeToString()) for each in (model, changed)]
    expected, value = (session.run(None, {"x": x})[0] for session in sessions)
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)


def test_an_output_shape_of_a_dynamic_input_is_refused() -> None:
    node = h.make_node("ConvTranspose", ["x", "kernel"], ["y"], strides=[2, 2], output_shape=[16, 16])
    with pytest.raises(ConversionRefused, match="output_shape"):
        parser_form(_model(node, ["n", 1, "h", "w"], 17), 17)


@pytest.mark.parametrize("opset", [10, 11, 19])
@pytest.mark.parametrize(("size", "padding"), [(8, 1), (7, 0), (8, 0), (7, 1)])
@pytest.mark.parametrize("is_static", [True, False])
def test_the_average_pool_counts_padding_only_if_no_window_can_end_after_it(
    opset: int, size: int, padding: int, is_static: bool
) -> None:
    """TensorRT gives other averages for a window that ends after the padding."""
    node = _pool("AveragePool", 3, 2, padding, count_include_pad=1)
    model = _model(node, ["n", 3, size, size] if is_static else ["n", 3, "h", "w"], opset)
    changed = parser_form(model, opset)
    x = np.random.default_rng(0).standard_normal((2, 3, size, size)).astype(np.float32)
    np.testing.assert_allclose(_run(changed, x), _run(model, x), rtol=1e-5, atol=1e-6)
    attributes = {entry.name: h.get_attribute_value(entry) for entry in changed.graph.node[-1].attribute}
    is_rounded_up = not is_static or (size + 2 * padding - 3) % 2
    assert attributes["count_include_pad"] == (0 if is_rounded_up else 1)
    assert any(attributes["pads"]) == (padding > 0 and not is_rounded_up)


@pytest.mark.parametrize("shape", [["n", 3, 8, 8], ["n", 3, "h", "w"]])
def test_a_norm_over_windows_has_no_ceil_mode(shape: list[int | str]) -> None:
    model = _model(_pool("LpPool", 3, 2, 0, p=2), shape, 18)
    changed = parser_form(model, 18)
    (mode,) = (entry.i for entry in changed.graph.node[0].attribute if entry.name == "ceil_mode")
    assert mode == 0
    for size in (7, 8):
        x = np.random.default_rng(0).standard_normal((2, 3, size, size)).astype(np.float32)
        if shape[2] in (size, "h"):
            np.testing.assert_allclose(_run(changed, x), _run(model, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_global_norm_of_an_odd_order_has_no_negative_operands(order: int) -> None:
    """The parser adds the powers of the elements, so negative elements would reduce the sum."""
    model = _model(h.make_node("GlobalLpPool", ["x"], ["y"], p=order), ["n", 3, 4], 17)
    changed = parser_form(model, 17)
    assert [node.op_type for node in changed.graph.node][:-1] == ["Abs"] * (order % 2)
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    np.testing.assert_allclose(_run(changed, x), _run(model, x), rtol=1e-5)


def test_a_selu_has_the_numbers_of_onnx() -> None:
    """The parser's defaults are the numbers of opset 1, which have four decimal places."""
    model = _model(h.make_node("Selu", ["x"], ["y"]), ["n", 4], 17)
    changed = parser_form(model, 17)
    assert {entry.name: entry.f for entry in changed.graph.node[0].attribute} == pytest.approx(
        {"alpha": 1.6732632, "gamma": 1.0507010}, rel=1e-7
    )
    x = np.linspace(-3, 3, 4, dtype=np.float32).reshape(1, 4)
    np.testing.assert_array_equal(_run(changed, x), _run(model, x))
    given = _model(h.make_node("Selu", ["x"], ["y"], alpha=1.5, gamma=2.0), ["n", 4], 17)
    np.testing.assert_array_equal(_run(parser_form(given, 17), x), _run(given, x))


@pytest.mark.parametrize("attributes", [{}, {"upper": 0}, {"upper": 1}])
def test_a_triangle_is_the_half_of_onnx(attributes: dict[str, int]) -> None:
    """Without the attribute, the parser keeps the lower half."""
    model = _model(h.make_node("Trilu", ["x"], ["y"], **attributes), ["n", 4], 17)
    changed = parser_form(model, 17)
    assert [entry.name for entry in changed.graph.node[0].attribute] == ["upper"]
    x = np.arange(1, 17, dtype=np.float32).reshape(4, 4)
    np.testing.assert_array_equal(_run(changed, x), _run(model, x))


@pytest.mark.parametrize("axes", ["none", "empty", "one"])
@pytest.mark.parametrize("operator", ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare"])
def test_a_reduction_over_no_axes_computes_each_element(operator: str, axes: str) -> None:
    """The parser returns the operand."""
    names = ["x"] if axes == "none" else ["x", "axes"]
    model = _model(h.make_node(operator, names, ["y"], noop_with_empty_axes=1), ["n", 4], 18)
    if axes != "none":
        constant = onnx.numpy_helper.from_array(np.array([1] * (axes == "one"), np.int64))
        model.graph.node.insert(0, h.make_node("Constant", [], ["axes"], value=constant))
    changed = parser_form(model, 18)
    assert (operator in _operators(changed)) == (axes == "one")
    assert _parse_errors(changed) == []
    x = np.array([[-3, 2, 0.5, 8], [1, 2, 3, 4]], np.float32)
    x = np.abs(x) if operator == "ReduceLogSum" else x
    np.testing.assert_allclose(_run(changed, x), _run(model, x), rtol=1e-6)


@pytest.mark.parametrize(("element", "is_refused"), [(T.FLOAT8E4M3FN, True), (T.FLOAT8E5M2, True), (T.INT8, False)])
def test_a_float8_quantizer_that_does_not_saturate_is_refused(element: int, is_refused: bool) -> None:
    """The parser ignores the attribute, which has no effect on int8."""
    for saturate in (0, 1):
        model = _model(h.make_node("QuantizeLinear", ["x", "tenth", "zero"], ["q"], saturate=saturate), ["n", 4], 19)
        model.graph.initializer.append(h.make_tensor("zero", element, [1], b"\0", raw=True))
        model.graph.node.append(h.make_node("DequantizeLinear", ["q", "tenth", "zero"], ["y"]))
        if is_refused and not saturate:
            with pytest.raises(ConversionRefused, match="saturate=0"):
                parser_form(model, 19)
        else:
            assert parser_form(model, 19) == model


@pytest.mark.parametrize("operator", ["GRU", "LSTM", "RNN"])
def test_a_recurrent_operator_with_the_batch_first_is_refused(operator: str) -> None:
    """The parser ignores the layout, so it would take the batch for the sequence."""
    node = h.make_node(operator, ["x", "kernel", "kernel"], ["y"], hidden_size=1, layout=1)
    with pytest.raises(ConversionRefused, match="layout=1"):
        parser_form(_model(node, ["n", "s", 4], 14), 14)


def _loop(first: str, following: str, *, has_rows: bool = True) -> onnx.ModelProto:
    """A model with a loop of at most 5 additions of x.

    `first` is the condition before the loop, and `following` is the condition after each pass. `c` is an input.
    """
    value = h.make_tensor_value_info
    nodes = [
        h.make_node("Add", ["s", "x"], ["s2"]),
        h.make_node("Less", ["s2", "one"], ["less"]),
        *(h.make_node("Identity", [a], [b]) for a, b in (("s2", "row"), ("before", "same"), (following, "after"))),
    ]
    body = h.make_graph(
        nodes,
        "body",
        [value("i", T.INT64, []), value("before", T.BOOL, []), value("s", T.FLOAT, [])],
        [value("after", T.BOOL, []), value("s2", T.FLOAT, []), *([value("row", T.FLOAT, [])] if has_rows else [])],
    )
    numbers = {"five": np.int64(5), "yes": np.array(True), "zero": np.float32(0), "one": np.float32(1)}
    node = h.make_node("Loop", ["five", first, "zero"], ["y", *(["rows"] if has_rows else [])], body=body)
    graph = h.make_graph(
        [node],
        "g",
        [value("x", T.FLOAT, []), value("c", T.BOOL, [])],
        [value("y", T.FLOAT, []), *([value("rows", T.FLOAT, [None])] if has_rows else [])],
        [onnx.numpy_helper.from_array(np.asarray(number), name) for name, number in numbers.items()],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)


def test_a_loop_with_scan_outputs_is_refused_if_its_condition_may_end_it() -> None:
    """The parser's output has 5 rows. In ONNX it has 2 rows here, because 0.6 + 0.6 is more than 1."""
    model = _loop("yes", "less")
    inputs = {"x": np.array(0.6, np.float32), "c": np.array(True)}
    (rows,) = onnxruntime.InferenceSession(model.SerializeToString()).run(["rows"], inputs)
    assert len(rows) == 2
    for first, following in (("yes", "less"), ("c", "same"), ("c", "yes")):
        with pytest.raises(ConversionRefused, match="scan outputs"):
            parser_form(_loop(first, following), 17)


def test_a_loop_that_runs_to_its_end_may_have_scan_outputs() -> None:
    for model in (_loop("yes", "same"), _loop("yes", "yes"), _loop("", "yes"), _loop("c", "less", has_rows=False)):
        assert parser_form(model, 17) == model


def _operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("opset", [10, 11, 13, 17])
@pytest.mark.parametrize(("low", "high"), [(3.0, 1.0), (-1.0, 1.0), (np.inf, 2.0)])
def test_a_clip_has_its_bounds_in_order(opset: int, low: float, high: float) -> None:
    """ONNX gives the upper bound if the bounds are in the wrong order. TensorRT gives the lower bound."""
    node = h.make_node("Clip", ["x", "low", "high"], ["y"])
    if opset < 11:
        node = h.make_node("Clip", ["x"], ["y"], min=low, max=high)
    model = _model(node, ["n", 4], opset)
    if opset >= 11:
        bounds = {"low": low, "high": high}
        model.graph.initializer.extend(
            onnx.numpy_helper.from_array(np.array(bound, np.float32), name) for name, bound in bounds.items()
        )
    changed = parser_form(model, opset)
    if low < high:
        assert changed == model
    elif opset < 11:
        assert {entry.f for entry in changed.graph.node[0].attribute} == {np.float32(high)}
    else:
        assert [*changed.graph.node[0].input] == ["x", "high", "high"]
    x = np.array([[-np.inf, 0.5, 2.5, np.inf]], np.float32)
    np.testing.assert_array_equal(_run(changed, x), np.minimum(np.maximum(x, np.float32(low)), np.float32(high)))
    assert _parse_errors(changed) == []


@pytest.mark.parametrize("opset", [11, 17])
def test_a_clip_is_a_max_and_a_min_if_a_bound_is_not_known(opset: int) -> None:
    model = _model(h.make_node("Clip", ["x", "low", "four"], ["y"], name="clip"), ["n", 4], opset)
    model.graph.initializer[0].dims[:] = []
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(-5, np.float32), "five"))
    model.graph.node.insert(0, h.make_node("Neg", ["five"], ["low"]))
    changed = parser_form(model, opset)
    assert _operators(changed) == ["Neg", "Max", "Min"]
    assert [node.name for node in changed.graph.node] == ["", "clip", "clip"]
    x = np.array([[-np.inf, 4.5, 7, np.inf]], np.float32)
    np.testing.assert_array_equal(_run(changed, x), np.full((1, 4), 4, np.float32))
    assert _parse_errors(changed) == []


_ROWS = np.array([[1, -np.inf, -np.inf, 2], [-np.inf] * 4, [np.inf, 0, np.inf, -np.inf], [np.inf] * 4])


@pytest.mark.parametrize("opset", [11, 12, 17, 20])
@pytest.mark.parametrize("element", [T.FLOAT, T.FLOAT16])
@pytest.mark.parametrize(
    "attributes",
    [{}, {"axis": 0, "largest": 0}, {"axis": 1, "largest": 1}, {"axis": -2}, {"axis": -1, "largest": 0}],
)
def test_a_sorted_infinity_has_an_index(opset: int, element: int, attributes: dict[str, int]) -> None:
    """TensorRT gives the index -1 for infinities that are last in the order."""
    model = _model(
        h.make_node("TopK", ["x", "k"], ["y", "indices"], name="top", **attributes), ["n", 4], opset, element
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([4]), "k"))
    model.graph.output.append(h.make_tensor_value_info("indices", T.INT64, [None, None]))
    changed = parser_form(model, opset)
    smallest = attributes.get("largest") == 0
    assert _operators(changed) == ["Min" if smallest else "Max", "TopK", "GatherElements"]
    assert {node.name for node in changed.graph.node} == {"top"}
    x = _ROWS.astype(h.tensor_dtype_to_np_dtype(element))
    assert _parse_errors(changed) == []
    for value, expected in zip(_run_all(changed, x), _run_all(model, x), strict=True):
        np.testing.assert_array_equal(value, expected)
    limit = np.finfo(x.dtype).max
    (name,) = {*changed.graph.node[0].input} - {"x"}
    (constant,) = (tensor for tensor in changed.graph.initializer if tensor.name == name)
    assert onnx.numpy_helper.to_array(constant) == (limit if smallest else -limit)


def _run_all(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    _run(model, x)
    return list(onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x}))


def test_a_sorting_does_not_change_if_no_index_of_a_float_is_read() -> None:
    def top(opset: int, element: int, *outputs: str) -> onnx.ModelProto:
        attributes, inputs = ({"k": 2}, ["x"]) if opset < 10 else ({}, ["x", "k"])
        model = _model(h.make_node("TopK", inputs, outputs, **attributes), ["n", 4], opset, element)
        if opset >= 10:
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2]), "k"))
        return model

    for model, opset in (
        (top(17, T.FLOAT, "y", "indices"), 17),  # the indices are not used
        (top(17, T.FLOAT, "y", ""), 17),
        (top(17, T.INT64, "values", "y"), 17),
        (top(10, T.FLOAT, "values", "y"), 10),
        (top(9, T.FLOAT, "values", "y"), 9),
    ):
        assert parser_form(model, opset) == model


def test_a_sorting_whose_values_are_not_used_gathers_no_values() -> None:
    model = _model(h.make_node("TopK", ["x", "k"], ["values", "y"]), ["n", 4], 17)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([4]), "k"))
    model.graph.output[0].type.tensor_type.elem_type = T.INT64
    changed = parser_form(model, 17)
    assert _operators(changed) == ["Max", "TopK"]
    np.testing.assert_array_equal(_run(changed, _ROWS.astype(np.float32)), _run(model, _ROWS.astype(np.float32)))


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("opset", [11, 12, 17])
@pytest.mark.parametrize("element", [T.FLOAT, T.FLOAT16, T.BFLOAT16])
@pytest.mark.parametrize(
    "attributes", [{}, {"axis": -1}, {"axis": 1, "keepdims": 0}, {"axis": 1, "select_last_index": 1}]
)
def test_the_index_of_an_infinity_is_found(operator: str, opset: int, element: int, attributes: dict[str, int]) -> None:
    model = _model(h.make_node(operator, ["x"], ["y"], **attributes), ["n", 4], opset, element)
    rank = 2 if attributes.get("keepdims", 1) else 1
    model.graph.output[0].CopyFrom(h.make_tensor_value_info("y", T.INT64, [None] * rank))
    changed = parser_form(model, opset)
    assert _operators(changed) == ["Max" if operator == "ArgMax" else "Min", operator]
    limit = onnx.numpy_helper.to_array(changed.graph.initializer[0]).astype(np.float64)
    assert np.isfinite(limit) and abs(limit) >= 65504
    if opset == 11 and "select_last_index" in attributes:
        return  # this attribute is new in opset 12
    if "select_last_index" not in attributes and (opset >= 13 or element != T.BFLOAT16):
        assert _parse_errors(changed) == []
    if element == T.FLOAT:
        x = _ROWS.astype(np.float32)
        np.testing.assert_array_equal(_run(changed, x), _run(model, x))


def test_a_search_in_integers_does_not_change() -> None:
    model = _model(h.make_node("ArgMax", ["x"], ["y"]), ["n", 4], 17, T.INT64)
    assert parser_form(model, 17) == model


def test_a_search_in_a_value_of_an_unknown_type_does_not_change() -> None:
    """Two branches have a value z: float32 numbers in one, float16 numbers in the other."""
    branches = []
    for element in (T.FLOAT, T.FLOAT16):
        nodes = [h.make_node("Cast", ["x"], ["z"], to=element), h.make_node("ArgMax", ["z"], ["i"])]
        result = h.make_tensor_value_info("i", T.INT64, [None, None])
        branches.append(h.make_graph(nodes, f"to{element}", [], [result]))
    node = h.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    x, y = h.make_tensor_value_info("x", T.FLOAT, ["n", 4]), h.make_tensor_value_info("y", T.INT64, [None, None])
    graph = h.make_graph([node], "g", [x, h.make_tensor_value_info("c", T.BOOL, [])], [y])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    assert parser_form(model, 17) == model


def test_an_empty_list_of_axes_means_all_axes() -> None:
    model = _model(h.make_node("ReduceLogSumExp", ["x"], ["y"], axes=[0]), ["n", 4], 13)
    del model.graph.node[0].attribute[0].ints[:]
    assert "ReduceLogSumExp" not in _operators(parser_form(model, 13))


def test_a_divisor_may_be_a_constant_node() -> None:
    model = _model(h.make_node("Mod", ["x", "two"], ["y"], fmod=1), ["n", 4], 19)
    model.graph.node.insert(0, h.make_node("Constant", [], ["two"], value_float=2.0))
    assert parser_form(model, 19) == model


def _log_sum_exp(
    opset: int, element: int, axes: list[int] | None, *, keepdims: int | None, noop: int
) -> onnx.ModelProto:
    attributes: dict[str, Any] = {} if keepdims is None else {"keepdims": keepdims}
    inputs = ["x"]
    if opset >= 18:
        attributes |= {"noop_with_empty_axes": 1} if noop else {}
        inputs += [] if axes is None else ["axes"]
    else:
        attributes |= {} if axes is None else {"axes": axes}
    model = _model(h.make_node("ReduceLogSumExp", inputs, ["y"], name="sum", **attributes), ["n", 3, 4], opset, element)
    if "axes" in inputs:
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(axes, np.int64), "axes"))
    count = 3 if axes is None else len(axes)
    rank = 3 if noop or keepdims != 0 else 3 - count
    model.graph.output[0].CopyFrom(h.make_tensor_value_info("y", element, [None] * rank))
    return model


@pytest.mark.parametrize("opset", [9, 11, 13, 17, 18, 20])
@pytest.mark.parametrize("element", [T.FLOAT, T.FLOAT16])
@pytest.mark.parametrize("axes", [None, [1], [2], [0, 2]])
@pytest.mark.parametrize("keepdims", [None, 0, 1])
def test_a_log_sum_exp_subtracts_the_maximum(
    opset: int, element: int, axes: list[int] | None, keepdims: int | None
) -> None:
    """TensorRT's parser computes log(sum(exp(x))), which is inf for x = 100."""
    model = _log_sum_exp(opset, element, axes, keepdims=keepdims, noop=0)
    changed = parser_form(model, opset)
    assert "ReduceLogSumExp" not in _operators(changed)
    assert {node.name for node in changed.graph.node} == {"sum"}
    assert _parse_errors(changed) == []
    reference = _log_sum_exp(opset, T.FLOAT, axes, keepdims=keepdims, noop=0)  # onnxruntime has no float16 kernel
    x = np.random.default_rng(0).permutation(np.linspace(-200, 200, 24)).reshape(2, 3, 4).astype(np.float32)
    for special in (None, np.inf, -np.inf):
        x[1, 1] = x[1, 1] if special is None else special
        x = x.astype(h.tensor_dtype_to_np_dtype(element))
        value = _run(changed, x)
        assert np.isfinite(value).all() or special is not None
        np.testing.assert_allclose(
            value, _run(reference, x.astype(np.float32)), rtol=1e-3 if element != T.FLOAT else 1e-6
        )
    x[:] = -np.inf
    assert (_run(changed, x) == -np.inf).all()


def test_a_log_sum_exp_without_axes_can_return_its_operand() -> None:
    model = _log_sum_exp(18, T.FLOAT, None, keepdims=None, noop=1)
    changed = parser_form(model, 18)
    x = np.array([-np.inf, -100, 100, np.inf], np.float32).reshape(1, 1, 4).repeat(3, 1)
    np.testing.assert_array_equal(_run(changed, x), x)
    assert _parse_errors(changed) == []


def test_a_log_sum_exp_of_doubles_does_not_change() -> None:
    model = _log_sum_exp(17, T.DOUBLE, [1], keepdims=None, noop=0)
    assert parser_form(model, 17) == model


def _suppression(*inputs: str) -> onnx.ModelProto:
    """A NonMaxSuppression of the boxes x, which do not overlap. Their scores are negative, zero and positive."""
    numbers = {
        "scores": np.array([[[-3, 0, 2], [-1, -2, -3]]], np.float32),
        "count": np.array([3]),
        "overlap": np.array([0.5], np.float32),
        "zero": np.array([0], np.float32),
    }
    value = h.make_tensor_value_info
    graph = h.make_graph(
        [h.make_node("NonMaxSuppression", ["x", "scores", *inputs], ["y"])],
        "g",
        [value("x", T.FLOAT, [1, 3, 4])],
        [value("y", T.INT64, [None, 3])],
        [onnx.numpy_helper.from_array(number, name) for name, number in numbers.items() if name in ("scores", *inputs)],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)


_BOXES = np.array([[[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5]]], np.float32)


@pytest.mark.parametrize("inputs", [["count"], ["count", "overlap"], ["count", "overlap", ""], ["count", "", ""]])
def test_a_suppression_without_a_threshold_keeps_every_score(inputs: list[str]) -> None:
    """TensorRT's parser takes 0 as the threshold."""
    model = _suppression(*inputs)
    changed = parser_form(model, 17)
    (node,) = changed.graph.node
    threshold = next(tensor for tensor in changed.graph.initializer if tensor.name == node.input[4])
    assert onnx.numpy_helper.to_array(threshold) == [np.finfo(np.float32).min]
    assert ("overlap" in node.input) == ("overlap" in inputs)
    result = _run(changed, _BOXES)
    assert len(result) == 6
    np.testing.assert_array_equal(result, _run(model, _BOXES))
    assert _parse_errors(changed) == []


def test_a_suppression_with_a_threshold_does_not_change() -> None:
    model = _suppression("count", "overlap", "zero")
    assert parser_form(model, 17) == model


def test_a_suppression_without_a_number_of_boxes_is_refused() -> None:
    """In this case, ONNX selects no boxes, and TensorRT selects some."""
    assert len(_run(_suppression("", "overlap"), _BOXES)) == 0
    for inputs in ([], ["", "overlap"], ["", "overlap", "zero"]):
        with pytest.raises(ConversionRefused, match="max_output_boxes_per_class"):
            parser_form(_suppression(*inputs), 17)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_refuses_coordinates_that_the_parser_replaces(mode: str) -> None:
    attributes = {"coordinate_transformation_mode": "tf_half_pixel_for_nn"}
    with pytest.raises(ConversionRefused, match=f"Resize has the mode {mode} and the coordinates tf_half_pixel_for_nn"):
        parser_form(_model(h.make_node("Resize", ["x", "", "four"], ["y"], mode=mode, **attributes), [4], 13), 13)
    nearest = _model(h.make_node("Resize", ["x", "", "four"], ["y"], **attributes), [4], 13)
    assert parser_form(nearest, 13) == nearest
