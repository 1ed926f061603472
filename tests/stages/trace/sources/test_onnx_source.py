"""ONNX sources are read, checked and converted to a graph with the inputs and dims of the manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto as T
from onnx import helper as h
from onnx.reference import ReferenceEvaluator

from tests.stages.trace.conftest import make_job
from trtbuild.core.model.spec import Input, NamedDim, Source
from trtbuild.driver.workers.graph_steps import graph_functions
from trtbuild.errors import SourceError
from trtbuild.stages.convert.weights import with_inline_weights
from trtbuild.stages.graphs.onnx_model import convert_to_opset, graph_text, node_names, types
from trtbuild.stages.trace.sources.onnx_source import OnnxSource
from trtbuild.stages.trace.sources.source_graph import SourceGraph
from trtbuild.stages.trace.user_code.frames import Frames
from trtbuild.stages.trace.user_code.owners import FileOwners

WEIGHT = np.arange(64 * 8, dtype=np.float32).reshape(64, 8) / 100
SHAPES = {"x": ([1, 64], [3, 64], [8, 64])}


def model(**changes: Any) -> onnx.ModelProto:
    """``y = relu(x) @ w + b``. `w` becomes a weight, and the small `b` stays in the graph. `changes` replace parts."""
    nodes = changes.pop(
        "nodes",
        [
            h.make_node("Relu", ["x"], ["r"], name="act"),
            h.make_node("MatMul", ["r", "w"], ["m"]),
            h.make_node("Add", ["m", "b"], ["y"], name="plus"),
        ],
    )
    graph = h.make_graph(
        nodes,
        changes.pop("name", "net"),
        changes.pop("inputs", [h.make_tensor_value_info("x", T.FLOAT, ["n", 64])]),
        changes.pop("outputs", [h.make_tensor_value_info("y", T.FLOAT, None)]),
        initializer=changes.pop(
            "initializers",
            [onnx.numpy_helper.from_array(WEIGHT, "w"), onnx.numpy_helper.from_array(np.ones(8, np.float32), "b")],
        ),
    )
    opset = changes.pop("opset", 17)
    assert not changes
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=8)


def read(folder: Path, proto: onnx.ModelProto | None = None, shapes: Any = SHAPES, **job: Any) -> SourceGraph:
    if proto is not None:
        onnx.save(proto, folder / "net.onnx")
    trace_job = make_job(shapes, source=Source("onnx", "net.onnx"), **job)
    return OnnxSource(trace_job, folder, Frames(FileOwners(), folder), graph_functions()).read()


def run(graph: SourceGraph, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs that onnxruntime computes from the model of `graph`, its weights and `inputs`."""
    converted, _ = convert_to_opset(graph.blob, 20)
    session = onnxruntime.InferenceSession(
        with_inline_weights(converted, {f"w{slot}": value.numpy() for slot, value in graph.weights})
    )
    return list(session.run(None, {f"i{number}": value for number, value in enumerate(inputs)}))


def test_large_initializers_are_weights_and_small_ones_stay(tmp_path: Path) -> None:
    graph = read(tmp_path, model())
    assert [(entry["name"], entry["dtype"], entry["shape"]) for entry in graph.interface["weights"]] == [
        ("w", "float32", [64, 8])
    ]
    assert torch.equal(graph.weights[0][1], torch.from_numpy(WEIGHT))
    proto = onnx.ModelProto.FromString(graph.blob)
    assert [tensor.name for tensor in proto.graph.initializer] == ["w0", "c0"]


def test_the_graph_computes_the_same_as_the_file(tmp_path: Path) -> None:
    graph = read(tmp_path, model())
    x = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(tmp_path / "net.onnx").run(None, {"x": x})
    (result,) = run(graph, [x])
    assert np.array_equal(result, expected)


def test_types_use_the_symbols_of_the_manifest(tmp_path: Path) -> None:
    graph = read(tmp_path, model(), {"x": ([2, 64], [4, 64], [8, 64])}, dims=[NamedDim("rows", (("x", 0),), 2)])
    assert graph.interface["inputs"][0]["shape"] == [["mul", 2, ["sym", 0]], 64]
    assert graph.interface["outputs"] == [{"name": "y", "dtype": "float32", "shape": [["mul", 2, ["sym", 0]], 8]}]
    assert graph.interface["output_tree"] == {"kind": "tensor", "index": 0}
    assert types(graph.blob).inputs[0].shape == (["mul", 2, ["sym", 0]], 64)


def test_a_dynamic_size_of_the_file_may_be_static_in_the_manifest(tmp_path: Path) -> None:
    graph = read(tmp_path, model(), {"x": [4, 64]})
    assert graph.interface["outputs"][0]["shape"] == [4, 8]


def test_a_size_that_shape_inference_cannot_find_depends_on_data(tmp_path: Path) -> None:
    nodes = [h.make_node("NonZero", ["x"], ["y"])]
    graph = read(tmp_path, model(nodes=nodes, outputs=[h.make_tensor_value_info("y", T.INT64, None)], initializers=[]))
    assert graph.interface["outputs"][0]["shape"] == [2, ["data", 0]]


def test_inputs_are_matched_by_name_and_have_the_order_of_the_manifest(tmp_path: Path) -> None:
    inputs = [h.make_tensor_value_info(name, T.FLOAT, ["n", 4]) for name in ("a", "b")]
    proto = model(nodes=[h.make_node("Sub", ["a", "b"], ["y"])], inputs=inputs, initializers=[])
    rows = ([1, 4], [2, 4], [4, 4])
    graph = read(tmp_path, proto, {"b": rows, "a": rows}, dims=[NamedDim("n", (("a", 0), ("b", 0)))])
    ones, threes = np.ones((2, 4), np.float32), np.full((2, 4), 3, np.float32)
    (result,) = run(graph, [threes, ones])  # the manifest declares b first
    assert (result == -2).all()


def test_names_metadata_and_the_storage_form_of_numbers_do_not_change_the_graph(tmp_path: Path) -> None:
    first = graph_text(read(tmp_path, model()).blob)
    proto = model(name="other")
    proto.producer_name, proto.doc_string, proto.graph.node[0].name = "somebody", "text", "renamed"
    proto.graph.node[1].metadata_props.add(key="path", value="/home/x")
    bias = proto.graph.initializer[1]
    bias.float_data.extend(np.frombuffer(bias.raw_data, np.float32))
    bias.ClearField("raw_data")
    proto.graph.initializer[0].name = proto.graph.node[1].input[1] = "kernel"
    assert graph_text(read(tmp_path, proto).blob) == first
    changed = model()
    changed.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.zeros(8, np.float32), "b"))
    assert graph_text(read(tmp_path, changed).blob) != first


def test_another_weight_gives_the_same_graph(tmp_path: Path) -> None:
    first = read(tmp_path, model())
    proto = model()
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(WEIGHT * 2, "w"))
    second = read(tmp_path, proto)
    assert second.blob == first.blob
    assert not torch.equal(second.weights[0][1], first.weights[0][1])


def test_the_users_names_of_nodes_are_recorded(tmp_path: Path) -> None:
    assert node_names(read(tmp_path, model()).blob) == [
        ("act", "Relu", ""),
        ("MatMul_1", "MatMul", ""),
        ("plus", "Add", ""),
    ]


def test_external_data_and_constants_in_nodes_are_read(tmp_path: Path) -> None:
    proto = model(
        nodes=[
            h.make_node("Constant", [], ["w"], value=onnx.numpy_helper.from_array(WEIGHT)),
            h.make_node("MatMul", ["x", "w"], ["m"]),
            h.make_node("Add", ["m", "b"], ["y"]),
        ],
        initializers=[onnx.numpy_helper.from_array(np.arange(8, dtype=np.float32), "b")],
    )
    onnx.save(proto, tmp_path / "net.onnx", save_as_external_data=True, location="net.data", size_threshold=0)
    graph = read(tmp_path)
    assert (tmp_path / "net.data").stat().st_size > 0
    x = np.ones((2, 64), np.float32)
    (expected,) = onnxruntime.InferenceSession(tmp_path / "net.onnx").run(None, {"x": x})
    assert np.array_equal(run(graph, [x])[0], expected)
    assert len(graph.weights) == 1


def test_functions_of_the_model_are_inlined(tmp_path: Path) -> None:
    proto = model(nodes=[h.make_node("Twice", ["x"], ["y"], domain="mine")], initializers=[])
    body = [h.make_node("Add", ["a", "a"], ["b"])]
    proto.functions.append(h.make_function("mine", "Twice", ["a"], ["b"], body, [h.make_opsetid("", 17)]))
    proto.opset_import.append(h.make_opsetid("mine", 1))
    (result,) = run(read(tmp_path, proto), [np.ones((2, 64), np.float32)])
    assert (result == 2).all()


def test_a_function_that_no_node_calls_may_have_another_opset(tmp_path: Path) -> None:
    proto = model()
    proto.functions.append(
        h.make_function("f", "F", ["a"], ["b"], [h.make_node("Relu", ["a"], ["b"])], [h.make_opsetid("", 13)])
    )
    proto.opset_import.append(h.make_opsetid("f", 1))
    assert graph_text(read(tmp_path, proto).blob) == graph_text(read(tmp_path, model()).blob)


def test_a_function_that_calls_itself_is_an_error(tmp_path: Path) -> None:
    proto = model(nodes=[h.make_node("F", ["x"], ["y"], domain="f")], initializers=[])
    imports = [h.make_opsetid("", 17), h.make_opsetid("f", 1)]
    nodes = [h.make_node("F", ["a"], ["b"], domain="f")]
    proto.functions.append(h.make_function("f", "F", ["a"], ["b"], nodes, imports))
    proto.opset_import.append(imports[1])
    with pytest.raises(SourceError, match=r"the functions of .* cannot be inlined: Cycle"):
        read(tmp_path, proto)


def test_the_error_about_a_function_of_another_opset_names_it(tmp_path: Path) -> None:
    proto = model(nodes=[h.make_node("Twice", ["x"], ["y"], domain="mine")])
    body = [h.make_node("Add", ["a", "a"], ["b"])]
    proto.functions.append(h.make_function("mine", "Twice", ["a"], ["b"], body, [h.make_opsetid("", 13)]))
    proto.opset_import.append(h.make_opsetid("mine", 1))
    with pytest.raises(
        SourceError, match=r"calls the function mine.Twice, which has another version of ONNX's operators"
    ):
        read(tmp_path, proto)


def test_a_weight_or_a_constant_can_be_an_output(tmp_path: Path) -> None:
    """Shape inference does not find their types. It then does not find the types of other results, either."""
    outputs = [h.make_tensor_value_info(name, T.FLOAT, None) for name in ("y", "w", "b")]
    graph = read(tmp_path, model(outputs=outputs))
    assert [entry["shape"] for entry in graph.interface["outputs"]] == [[["sym", 0], 8], [64, 8], [8]]
    x = np.ones((3, 64), np.float32)
    results = run(graph, [x])
    assert np.allclose(results[0], x @ WEIGHT + 1) and np.array_equal(results[1], WEIGHT) and results[2].shape == (8,)


def test_the_number_of_axes_comes_from_the_file_if_shape_inference_does_not_find_it(tmp_path: Path) -> None:
    body = h.make_graph(
        [h.make_node("Concat", ["rows", "x"], ["more"], axis=0), h.make_node("Identity", ["on"], ["still_on"])],
        "body",
        [
            h.make_tensor_value_info("number", T.INT64, []),
            h.make_tensor_value_info("on", T.BOOL, []),
            h.make_tensor_value_info("rows", T.FLOAT, None),
        ],
        [h.make_tensor_value_info("still_on", T.BOOL, []), h.make_tensor_value_info("more", T.FLOAT, None)],
    )
    parts = {
        "nodes": [h.make_node("Loop", ["count", "", "x"], ["y"], body=body)],
        "initializers": [onnx.numpy_helper.from_array(np.array(3), "count")],
    }
    with pytest.raises(SourceError, match=r"the number of axes of output 'y' of net\.onnx is not known"):
        read(tmp_path, model(**parts))
    graph = read(tmp_path, model(**parts, outputs=[h.make_tensor_value_info("y", T.FLOAT, ["rows", 64])]))
    assert graph.interface["outputs"][0]["shape"] == [["data", 0], ["data", 1]]
    assert run(graph, [np.ones((2, 64), np.float32)])[0].shape == (8, 64)


def test_a_call_without_an_attribute_gets_the_default_of_the_function(tmp_path: Path) -> None:
    """onnxscript writes such functions, so files of ``torch.onnx.dynamo_export`` have them."""
    leaky = h.make_node("LeakyRelu", ["a"], ["b"])
    leaky.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    opsets, slope = [h.make_opsetid("", 17), h.make_opsetid("mine", 1)], h.make_attribute("slope", 0.5)
    functions = [
        h.make_function("mine", "Leaky", ["a"], ["b"], [leaky], opsets, attribute_protos=[slope]),
        h.make_function("mine", "Outer", ["a"], ["b"], [h.make_node("Leaky", ["a"], ["b"], domain="mine")], opsets),
    ]
    nodes = [
        h.make_node("Outer", ["x"], ["inner"], domain="mine"),
        h.make_node("Leaky", ["inner"], ["y"], domain="mine", slope=0.25),
    ]
    proto = model(nodes=nodes, initializers=[])
    proto.opset_import.append(h.make_opsetid("mine", 1))
    proto.functions.extend(functions)
    (result,) = run(read(tmp_path, proto), [np.full((1, 64), -8, np.float32)])
    assert (result == -1).all()
    # the function passes on an attribute that its call leaves out
    proto.functions[1].attribute.append("slope")
    proto.functions[1].node[0].attribute.add(name="slope", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    with pytest.raises(SourceError, match="passes its attribute 'slope' to Leaky, and only Leaky has"):
        read(tmp_path, proto)


def test_a_normalization_without_axes_has_those_of_onnx(tmp_path: Path) -> None:
    normalize = h.make_node("MeanVarianceNormalization", ["x"], ["y"])
    x = h.make_tensor_value_info("x", T.FLOAT, ["n", 3, 4, 5])
    proto = model(nodes=[normalize], inputs=[x], initializers=[])
    graph = read(tmp_path, proto, {"x": ([1, 3, 4, 5], [3, 3, 4, 5], [8, 3, 4, 5])})
    assert graph.interface["outputs"][0]["shape"] == [["sym", 0], 3, 4, 5]
    value = np.random.default_rng(0).random((2, 3, 4, 5), np.float32)
    (expected,) = ReferenceEvaluator(proto).run(None, {"x": value})
    assert np.allclose(run(graph, [value])[0], expected, atol=1e-5)


def test_accepts_an_old_file_that_lists_its_initializers_as_inputs(tmp_path: Path) -> None:
    """ONNX's IR required this before version 4. Exporters of that time wrote such files."""
    proto = model(opset=9)
    proto.ir_version = 3
    proto.graph.input.append(h.make_tensor_value_info("w", T.FLOAT, [64, 8]))
    proto.graph.input.append(h.make_tensor_value_info("b", T.FLOAT, [8]))
    (result,) = run(read(tmp_path, proto), [np.ones((2, 64), np.float32)])
    np.testing.assert_allclose(result, np.ones((2, 64), np.float32) @ WEIGHT + 1, rtol=1e-6)


@pytest.mark.parametrize(("kernel", "size"), [(1, 6), (1, 7), (1, 8), (1, 12), (2, 9), (2, 12)])
def test_poolings_that_leave_out_a_last_window_have_the_sizes_of_onnx(tmp_path: Path, kernel: int, size: int) -> None:
    """The sizes of the second pooling follow from those of the first. TensorRT would compute the left-out windows."""
    options: Any = {"kernel_shape": [kernel, kernel], "strides": [kernel + 1, kernel + 1], "ceil_mode": 1}
    nodes = [h.make_node("MaxPool", [source], [result], **options) for source, result in ("xa", "ay")]
    inputs = [h.make_tensor_value_info("x", T.FLOAT, [1, 1, size, size])]
    proto = model(nodes=nodes, inputs=inputs, initializers=[])
    proto.graph.output.append(h.make_tensor_value_info("a", T.FLOAT, None))  # so the size of `a` is not in `value_info`
    graph = read(tmp_path, proto, {"x": [1, 1, size, size]})
    x = np.random.default_rng(0).random((1, 1, size, size)).astype(np.float32)
    expected, _ = onnxruntime.InferenceSession(tmp_path / "net.onnx").run(None, {"x": x})
    assert graph.interface["outputs"][0]["shape"] == list(expected.shape)
    assert np.array_equal(run(graph, [x])[0], expected)
    converted = onnx.ModelProto.FromString(convert_to_opset(graph.blob, 20)[0])
    inferred = onnx.shape_inference.infer_shapes(converted).graph.output[0].type.tensor_type.shape
    # onnx's inference counts the left-out window if a node has `ceil_mode`, as TensorRT does
    assert [axis.dim_value for axis in inferred.dim] == list(expected.shape)


def test_resized_sizes_are_those_of_float32(tmp_path: Path) -> None:
    """The float32 number nearest to 1.4 is smaller than 1.4. So onnx's inference finds 6 and 8, instead of 7 and 9."""
    scales = onnx.numpy_helper.from_array(np.array([1, 1, 1.4], np.float32), "scales")
    nodes = [h.make_node("Resize", [source, "", "scales"], [result]) for source, result in ("xa", "ay")]
    proto = model(nodes=nodes, inputs=[h.make_tensor_value_info("x", T.FLOAT, [1, 1, 5])], initializers=[scales])
    graph = read(tmp_path, proto, {"x": [1, 1, 5]})
    result = run(graph, [np.ones((1, 1, 5), np.float32)])[0]
    assert graph.interface["outputs"][0]["shape"] == list(result.shape) == [1, 1, 9]
    blob = onnx.ModelProto.FromString(graph.blob)
    assert np.array_equal(onnx.numpy_helper.to_array(blob.graph.initializer[0]), np.float32([1, 1, 1.4]))


@pytest.mark.parametrize(
    ("opset", "nodes"),
    [
        (
            17,
            [
                h.make_node("Constant", [], ["s"], value_floats=[1, 1, 1.4]),
                h.make_node("Resize", ["x", "", "s"], ["y"]),
            ],
        ),
        (13, [h.make_node("Resize", ["x", "", "scales", ""], ["y"])]),
        (18, [h.make_node("Resize", ["x", "", "scale"], ["y"], axes=[-1])]),
        (10, [h.make_node("Resize", ["x", "scales"], ["y"])]),
        (9, [h.make_node("Upsample", ["x", "scales"], ["y"])]),
        (7, [h.make_node("Upsample", ["x"], ["y"], scales=[1, 1, 1.4])]),
    ],
)
def test_scales_are_found_in_each_form(tmp_path: Path, opset: int, nodes: list[onnx.NodeProto]) -> None:
    scales = [
        onnx.numpy_helper.from_array(np.array([1, 1, 1.4][3 - count :], np.float32), name)
        for name, count in (("scales", 3), ("scale", 1))
    ]
    x = h.make_tensor_value_info("x", T.FLOAT, [1, 1, 5])
    graph = read(tmp_path, model(nodes=nodes, inputs=[x], initializers=scales, opset=opset), {"x": [1, 1, 5]})
    result = run(graph, [np.ones((1, 1, 5), np.float32)])[0]
    assert graph.interface["outputs"][0]["shape"] == list(result.shape) == [1, 1, 7]


def test_scales_in_a_constant_node_keep_their_numbers(tmp_path: Path) -> None:
    value = onnx.numpy_helper.from_array(np.array([1, 1, 1.4], np.float32))
    nodes = [h.make_node("Constant", [], ["s"], value=value), h.make_node("Resize", ["x", "", "s"], ["y"])]
    x = h.make_tensor_value_info("x", T.FLOAT, [1, 1, 5])
    graph = read(tmp_path, model(nodes=nodes, inputs=[x], initializers=[]), {"x": [1, 1, 5]})
    assert graph.interface["outputs"][0]["shape"] == [1, 1, 7]
    blob = onnx.ModelProto.FromString(graph.blob)
    assert np.array_equal(onnx.numpy_helper.to_array(blob.graph.node[0].attribute[0].t), np.float32([1, 1, 1.4]))


def test_a_pooling_after_a_resize_gets_the_size_of_float32(tmp_path: Path) -> None:
    """In the size 6 that onnx's inference finds, ONNX leaves out the last window. In the right size 7, it does not."""
    scales = onnx.numpy_helper.from_array(np.array([1, 1, 1.4], np.float32), "scales")
    nodes = [
        h.make_node("Resize", ["x", "", "scales"], ["z"]),
        h.make_node("MaxPool", ["z"], ["y"], kernel_shape=[2], strides=[3], ceil_mode=1),
    ]
    inputs = [h.make_tensor_value_info("x", T.FLOAT, [1, 1, 5])]
    graph = read(tmp_path, model(nodes=nodes, inputs=inputs, initializers=[scales]), {"x": [1, 1, 5]})
    x = np.random.default_rng(0).standard_normal((1, 1, 5)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(tmp_path / "net.onnx").run(None, {"x": x})
    (result,) = run(graph, [x])
    assert graph.interface["outputs"][0]["shape"] == list(expected.shape) == [1, 1, 3]
    assert np.array_equal(result, expected)


def test_initializers_that_nested_graphs_read_are_kept(tmp_path: Path) -> None:
    two = onnx.numpy_helper.from_array(np.full(64, 2, np.float32), "two")
    branches = {
        name: h.make_graph(
            [h.make_node("Mul", ["x", value], [f"{name}_y"])],
            name,
            [],
            [h.make_tensor_value_info(f"{name}_y", T.FLOAT, ["n", 64])],
            initializer=[onnx.numpy_helper.from_array(np.full(64, 3, np.float32), "three")] if value == "three" else [],
        )
        for name, value in (("then_branch", "two"), ("else_branch", "three"))
    }
    nodes = [
        h.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        h.make_node("Greater", ["s", "zero"], ["c"]),
        h.make_node("If", ["c"], ["y"], **branches),
    ]
    zero = onnx.numpy_helper.from_array(np.float32(0), "zero")
    graph = read(tmp_path, model(nodes=nodes, initializers=[two, zero]))
    for sign, factor in ((1, 2), (-1, 3)):
        x = np.full((2, 64), sign, np.float32)
        assert np.array_equal(run(graph, [x])[0], x * factor)


def with_unknown_operator(name: str = "odd", nested: bool = False) -> onnx.ModelProto:
    node = h.make_node("Gelu", ["x"], ["y"], name=name, domain="com.microsoft")
    if nested:
        body = h.make_graph([node], "branch", [], [h.make_tensor_value_info("y", T.FLOAT, ["n", 64])])
        node = h.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    proto = model(nodes=[node], initializers=[])
    proto.opset_import.append(h.make_opsetid("com.microsoft", 1))
    return proto


@pytest.mark.parametrize(
    ("create_model", "shapes", "message", "line"),
    [
        (with_unknown_operator, SHAPES, "node 'odd' of net.onnx is com.microsoft.Gelu", 3),
        (lambda: with_unknown_operator(""), SHAPES, "node 'Gelu_0' of net.onnx is com.microsoft.Gelu", 3),
        (
            lambda: with_unknown_operator("", nested=True),
            SHAPES,
            "a node of a nested graph of net.onnx is com.microsoft.Gelu",
            3,
        ),
        (lambda: None, SHAPES, "net.onnx does not exist", 3),
        (model, {"q": SHAPES["x"]}, "net.onnx has no input 'q'", 10),
        (model, {"x": SHAPES["x"], "z": [1]}, "net.onnx has no input 'z'", 11),
        (model, {"x": [64]}, "is float32 with 2 axes; the manifest says float32 with 1", 10),
        (
            model,
            {"x": ([1, 32], [1, 32], [1, 64])},
            "x.1 of net.onnx is fixed to 64; the profiles say 32..64",
            10,
        ),
        (model, {"x": [1, 32]}, "x.1 of net.onnx is fixed to 64; the profiles say 32", 10),
        (
            lambda: model(nodes=[h.make_node("Reul", ["x"], ["y"])], initializers=[]),
            SHAPES,
            "is not a valid ONNX model",
            3,
        ),
        (
            lambda: model(nodes=[h.make_node("MatMul", ["x", "x"], ["y"])], initializers=[]),
            {"x": [4, 64]},
            "do not fit together at the manifest's inputs",
            3,
        ),
    ],
)
def test_rejects_invalid_models_and_names_the_manifests_line(
    tmp_path: Path,
    create_model: Callable[[], onnx.ModelProto | None],
    shapes: Mapping[str, Any],
    message: str,
    line: int,
) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        read(tmp_path, create_model(), shapes)
    assert (caught.value.file, caught.value.line) == ("trtbuild.yaml", line)


@pytest.mark.parametrize(
    "node",
    [
        h.make_node("QuantizeLinear", ["x"], ["y"]),
        h.make_node("DequantizeLinear", [], ["y"]),
        h.make_node("DequantizeLinear", ["bias"], ["y"]),
        h.make_node("DequantizeLinear", ["bias", "scale"], []),
        h.make_node("Constant", [], [], value=onnx.numpy_helper.from_array(WEIGHT)),
        h.make_node("TRT_FP8QuantizeLinear", ["x"], ["y"], domain="trt"),
        h.make_node("TRT_FP8QuantizeLinear", ["x", "scale"], [], domain="trt"),
        h.make_node("TRT_FP8DequantizeLinear", [], ["y"], domain="trt"),
    ],
)
def test_the_checker_rejects_a_node_with_too_few_inputs_or_outputs(tmp_path: Path, node: onnx.NodeProto) -> None:
    bias = onnx.numpy_helper.from_array(np.ones(8, np.int32), "bias")
    scale = onnx.numpy_helper.from_array(np.float32(1), "scale")
    with pytest.raises(SourceError, match="is not a valid ONNX model"):
        read(tmp_path, model(nodes=[node], initializers=[bias, scale], opset=19))


def test_rejects_two_initializers_with_one_name(tmp_path: Path) -> None:
    """ONNX forbids such files, and readers differ in the initializer that they use."""
    proto = model()
    proto.graph.initializer.append(onnx.numpy_helper.from_array(-WEIGHT, "w"))
    with pytest.raises(SourceError, match="two initializers with the name 'w'"):
        read(tmp_path, proto)


def test_rejects_another_dtype_and_suggests_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is float32 with 2 axes; the manifest says float16") as caught:
        read(tmp_path, model(), inputs=[Input("x", "float16")])
    assert caught.value.hint == "write inputs: {x: {dtype: float32}}"


def test_rejects_invalid_onnx_files_and_missing_external_data(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_text("this is not a protobuf")
    with pytest.raises(SourceError, match=r"net\.onnx is not an ONNX model"):
        read(tmp_path)
    onnx.save(model(), tmp_path / "net.onnx", save_as_external_data=True, location="net.data", size_threshold=0)
    (tmp_path / "net.data").unlink()
    with pytest.raises(SourceError, match=r"keeps the data of 'w' in 'net.data', which is not in its folder"):
        read(tmp_path)


def test_a_tensor_of_an_unknown_type_is_an_error(tmp_path: Path) -> None:
    for number in (0, 99):
        proto = model()
        proto.graph.initializer[1].data_type = number
        with pytest.raises(
            SourceError, match=f"the tensor 'b' of an element type that onnx .* does not know: {number}"
        ):
            read(tmp_path, proto)
    proto = model(inputs=[h.make_tensor_value_info("x", 99, ["n", 64])])
    with pytest.raises(SourceError, match=r"input 'x' of net\.onnx is type 99"):
        read(tmp_path, proto)


def test_a_negative_size_is_dynamic(tmp_path: Path) -> None:
    """Some exporters write -1. onnxruntime accepts it, too."""
    graph = read(tmp_path, model(inputs=[h.make_tensor_value_info("x", T.FLOAT, [-1, 64])]))
    assert graph.interface["outputs"][0]["shape"] == [["sym", 0], 8]


def test_the_long_name_of_the_domain_of_onnx_is_known(tmp_path: Path) -> None:
    first, proto = read(tmp_path, model()), model()
    proto.opset_import[0].domain = "ai.onnx"
    for node in proto.graph.node:
        node.domain = "ai.onnx"
    assert graph_text(read(tmp_path, proto).blob) == graph_text(first.blob)
    proto.opset_import[0].domain = ""
    assert graph_text(read(tmp_path, proto).blob) == graph_text(first.blob)


def test_an_undeclared_input_is_an_error(tmp_path: Path) -> None:
    inputs = [h.make_tensor_value_info(name, T.FLOAT, ["n", 64]) for name in ("x", "mask")]
    proto = model(nodes=[h.make_node("Mul", ["x", "mask"], ["y"])], inputs=inputs, initializers=[])
    with pytest.raises(SourceError, match="has an input 'mask', which the manifest does not declare"):
        read(tmp_path, proto)


def test_a_pooling_in_a_branch_that_leaves_out_its_last_window_has_the_size_of_onnx(tmp_path: Path) -> None:
    options: Any = {"kernel_shape": [1], "strides": [2], "ceil_mode": 1}
    branches = {
        f"{name}_branch": h.make_graph(
            [h.make_node(operator, ["x"], [f"{name}_x"]), h.make_node("MaxPool", [f"{name}_x"], [name], **options)],
            name,
            [],
            [h.make_tensor_value_info(name, T.FLOAT, None)],
        )
        for name, operator in (("then", "Relu"), ("else", "Neg"))
    }
    nodes = [
        h.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        h.make_node("Cast", ["sum"], ["on"], to=T.BOOL),
        h.make_node("If", ["on"], ["y"], **branches),
    ]
    proto = model(nodes=nodes, inputs=[h.make_tensor_value_info("x", T.FLOAT, ["n", 2, 6])], initializers=[])
    graph = read(tmp_path, proto, {"x": ([1, 2, 6], [2, 2, 6], [4, 2, 6])})
    assert graph.interface["outputs"][0]["shape"] == [["sym", 0], 2, 3]
    assert run(graph, [np.ones((2, 2, 6), np.float32)])[0].shape == (2, 2, 3)
