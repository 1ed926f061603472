"""A model is lowered from opset 18 to opset 17. onnxruntime computes the same results in both opsets."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from onnx import helper as h

from trtbuild.errors import ConversionRefused
from trtbuild.stages.convert.opset import lower_opset

X = np.arange(24, dtype=np.float32).reshape(2, 12) - 7


def _model(*nodes: onnx.NodeProto, outputs: int = 1, **constants: np.ndarray) -> onnx.ModelProto:
    """A model of opset 18. The origin of a node is the index of the call that it came from: here 3, 4, …"""
    for index, node in enumerate(nodes):
        node.metadata_props.add(key="trtbuild.origin", value=str(index + 3))
    graph = h.make_graph(
        list(nodes),
        "g",
        [h.make_tensor_value_info("x", TensorProto.FLOAT, [2, 12])],
        [h.make_tensor_value_info(f"y{k}", TensorProto.FLOAT, None) for k in range(outputs)],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=8)


def _lp_pool(**attributes: object) -> onnx.ModelProto:
    nodes = (
        h.make_node("Reshape", ["x", "shape"], ["image"]),
        h.make_node("LpPool", ["image"], ["y0"], kernel_shape=[2, 2], **attributes),
    )
    return _model(*nodes, shape=np.array([1, 1, 4, 6]))


def _run(model: onnx.ModelProto) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": X})


@pytest.mark.parametrize(
    "model",
    [
        _model(h.make_node("ReduceMean", ["x", "axes"], ["y0"], keepdims=0), axes=np.array([1])),
        _model(h.make_node("ReduceMax", ["x"], ["y0"])),
        _model(h.make_node("ReduceL2", ["x", ""], ["y0"])),
        _model(h.make_node("ReduceMin", ["x"], ["y0"], noop_with_empty_axes=0)),
        _model(h.make_node("ReduceSum", ["x", "axes"], ["y0"]), axes=np.array([0])),
        _model(h.make_node("Split", ["x"], ["y0", "y1", "y2"], axis=1, num_outputs=3), outputs=3),
        _model(h.make_node("Pad", ["x", "pads"], ["y0"]), pads=np.array([0, 1, 1, 0])),
        _model(h.make_node("Resize", ["x", "", "scales"], ["y0"], antialias=0), scales=np.array([1, 2], np.float32)),
        _lp_pool(dilations=[1, 1], ceil_mode=0),
        *(
            _model(h.make_node("Shape", ["x"], ["s"], **part), h.make_node("Cast", ["s"], ["y0"], to=TensorProto.FLOAT))
            for part in (
                {"start": 0, "end": 1},
                {"start": 1},
                {"end": -1},
                {"start": -1},
                {"start": 5},
                {"start": -9, "end": 9},
            )
        ),
    ],
    ids=lambda model: str(model.graph.node[0].op_type) + str(len(model.graph.node[0].input)),
)
def test_a_lowered_model_gives_the_results_of_the_model_in_opset_18(model: onnx.ModelProto) -> None:
    lowered = lower_opset(model, 17)
    assert lowered.opset_import[0].version == 17
    for result, expected in zip(_run(lowered), _run(model), strict=True):
        np.testing.assert_array_equal(result, expected)
    assert lowered.graph.node[0].metadata_props[0].value == "3"  # its origin


@pytest.mark.parametrize(
    "model",
    [
        _model(h.make_node("Mish", ["x"], ["y0"])),
        _model(h.make_node("ReduceMean", ["x", "x"], ["y0"])),
        _model(h.make_node("ReduceMean", ["x", "axes"], ["y0"], noop_with_empty_axes=1), axes=np.array([], np.int64)),
        _model(h.make_node("ReduceMean", ["x"], ["y0"], noop_with_empty_axes=1)),
        _model(h.make_node("ReduceMax", ["x", ""], ["y0"], noop_with_empty_axes=1, keepdims=1)),
        _model(h.make_node("Split", ["x"], ["y0", "y1"], num_outputs=2, axis=-3), outputs=2),
        _model(h.make_node("Split", ["x"], [f"y{k}" for k in range(5)], axis=1, num_outputs=5), outputs=5),
        _model(h.make_node("Pad", ["x", "pads", "", "axes"], ["y0"]), pads=np.array([1, 1]), axes=np.array([1])),
        _model(h.make_node("Resize", ["x", "", "s"], ["y0"], antialias=1), s=np.array([1, 2], np.float32)),
        _model(h.make_node("ScatterElements", ["x", "i", "x"], ["y0"], reduction="max"), i=np.zeros((2, 12), np.int64)),
        _model(h.make_node("ScatterND", ["x", "i", "x"], ["y0"], reduction="add"), i=np.array([[0], [1]])),
    ],
    ids=lambda model: str(model.graph.node[0].op_type) + str(len(model.graph.node[0].attribute)),
)
def test_rejects_operators_that_a_parser_of_opset_17_cannot_read_and_names_their_call(model: onnx.ModelProto) -> None:
    with pytest.raises(
        ConversionRefused, match=f"{model.graph.node[0].op_type} cannot be written for a parser of ONNX opset 17"
    ) as refused:
        lower_opset(model, 17)
    assert refused.value.nodes == (3,)


def test_a_model_whose_opset_is_old_enough_is_not_changed() -> None:
    model = _model(h.make_node("Relu", ["x"], ["y0"]))
    assert lower_opset(model, 20) is model


def test_a_part_of_a_shape_becomes_a_slice_with_the_same_origin() -> None:
    # the parser of TensorRT 8.6.0 ignores `start` and `end` without an error
    model = _model(
        h.make_node("Shape", ["x"], ["s"], start=0, end=1), h.make_node("Cast", ["s"], ["y0"], to=TensorProto.FLOAT)
    )
    lowered = lower_opset(model, 17)
    assert [node.op_type for node in lowered.graph.node] == ["Shape", "Slice", "Cast"]
    assert not lowered.graph.node[0].attribute
    assert [node.metadata_props[0].value for node in lowered.graph.node] == ["3", "3", "4"]


def test_rejects_a_split_of_an_unknown_size() -> None:
    # opset 17 splits into equal parts; in opset 18 the last part may be smaller
    model = _model(h.make_node("Split", ["x"], ["y0", "y1"], axis=1, num_outputs=2), outputs=2)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "n"
    with pytest.raises(
        ConversionRefused, match=r"Split cannot be written .* opset 17: its outputs may have different sizes"
    ):
        lower_opset(model, 17)


def test_rejects_the_dilations_of_lp_pool() -> None:
    with pytest.raises(ConversionRefused, match=r"LpPool cannot be written .* opset 17: dilations is new in opset 18"):
        lower_opset(_lp_pool(dilations=[2, 1]), 17)


@pytest.mark.parametrize("operator", ["OptionalHasElement", "OptionalGetElement"])
def test_the_operators_of_optional_values_are_older_than_opset_18(operator: str) -> None:
    nodes = (h.make_node("Optional", ["x"], ["o"]), h.make_node(operator, ["o"], ["r"]))
    model = _model(*nodes, h.make_node("Cast", ["r"], ["y0"], to=TensorProto.FLOAT))
    assert np.array_equal(_run(lower_opset(model, 17))[0], _run(model)[0])


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_only_the_mode_wrap_of_pad_is_rejected(mode: str) -> None:
    model = _model(h.make_node("Pad", ["x", "pads"], ["y0"], mode=mode), pads=np.array([0, 1, 0, 1]))
    if mode != "wrap":
        assert lower_opset(model, 17).graph.node[0].op_type == "Pad"
        return
    with pytest.raises(ConversionRefused, match="the mode wrap is new in opset 19") as caught:
        lower_opset(model, 17)
    assert list(caught.value.nodes) == [3]


@pytest.mark.parametrize("equation", ["ij->ji", "ij,kj->ik", "ij, ij ->", "ij"])
def test_equations_that_old_parsers_support_stay(equation: str) -> None:
    model = _model(h.make_node("Einsum", ["x"] * len(equation.split(",")), ["y0"], equation=equation))
    assert lower_opset(model, 17).graph.node[0].op_type == "Einsum"


@pytest.mark.parametrize(
    ("equation", "reason"),
    [
        ("ii->i", "a letter twice in one operand"),
        ("ij,kk->i", "a letter twice in one operand"),
        ("...i->i...", "an ellipsis"),
        ("ij,kj,kl->il", "more than two operands"),
        ("iJ->Ji", "a capital letter"),
    ],
)
def test_rejects_equations_that_old_parsers_do_not_support(equation: str, reason: str) -> None:
    model = _model(h.make_node("Einsum", ["x"] * len(equation.split(",")), ["y0"], equation=equation))
    with pytest.raises(ConversionRefused, match=reason) as caught:
        lower_opset(model, 17)
    assert list(caught.value.nodes) == [3]
