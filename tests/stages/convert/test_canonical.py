"""The canonical form: equal structures give equal bytes, and each output comes from a separate node."""

from __future__ import annotations

import onnx
from onnx import TensorProto
from onnx import helper as h

from trtbuild.stages.convert.canonical import ORIGIN_KEY, canonical_model

#: The first inputs of a model are its weights: here w and an unused one.
WEIGHTS = 2


def _model(prefix: str, *, doc: str = "", swap: bool = False) -> onnx.ModelProto:
    """``b = concat(x @ w, c)``. The outputs are b, b again, the input x and the weight w.

    All names begin with `prefix`. `doc` is the documentation and the metadata. `swap` exchanges the operands of concat.
    """

    def prefixed(name: str) -> str:
        return f"{prefix}{name}"

    first = h.make_node(
        "MatMul", [prefixed("x"), prefixed("w")], [prefixed("a")], name=prefixed("first"), doc_string=doc
    )
    first.metadata_props.add(key=ORIGIN_KEY, value="4")
    first.metadata_props.add(key="path", value=doc)
    second = h.make_node(
        "Concat",
        [prefixed("c"), prefixed("a")] if swap else [prefixed("a"), prefixed("c")],
        [prefixed("b")],
        axis=0,
        name=prefixed("second"),
    )
    size = [f"{prefix}s", 4]
    graph = h.make_graph(
        [first, second],
        prefixed("graph"),
        [
            h.make_tensor_value_info(prefixed("w"), TensorProto.FLOAT, [4, 4]),
            h.make_tensor_value_info(prefixed("unused"), TensorProto.FLOAT, [2]),
            h.make_tensor_value_info(prefixed("x"), TensorProto.FLOAT, size),
        ],
        [
            h.make_tensor_value_info(name, TensorProto.FLOAT, size)
            for name in (prefixed("b"), prefixed("b"), prefixed("x"), prefixed("w"))
        ],
        [
            h.make_tensor(prefixed("dead"), TensorProto.FLOAT, [1], [1.0]),
            h.make_tensor(prefixed("c"), TensorProto.FLOAT, [1, 4], [1.0, 2.0, 3.0, 4.0]),
        ],
        doc_string=doc,
        value_info=[h.make_tensor_value_info(prefixed("a"), TensorProto.FLOAT, size)],
    )
    model = h.make_model(graph, producer_name=doc, opset_imports=[h.make_opsetid("", 20)])
    model.metadata_props.add(key="where", value=doc)
    return model


def test_names_documentation_metadata_and_unused_constants_have_no_effect() -> None:
    first, _ = canonical_model(_model("p_"), WEIGHTS, 20)
    second, _ = canonical_model(_model("q.", doc="/home/somebody/model.py"), WEIGHTS, 20)
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)


def test_another_operand_order_gives_other_bytes() -> None:
    assert canonical_model(_model("p_"), WEIGHTS, 20)[0] != canonical_model(_model("p_", swap=True), WEIGHTS, 20)[0]


def test_every_output_is_the_output_of_a_separate_node() -> None:
    model, origins = canonical_model(_model("p_"), WEIGHTS, 20)
    graph = model.graph
    assert [value.name for value in graph.output] == ["o0", "o1", "o2", "o3"]
    assert [(n.op_type, list(n.input), list(n.output)) for n in graph.node] == [
        ("MatMul", ["i0", "w0"], ["v0"]),
        ("Concat", ["v0", "c0"], ["o0"]),
        ("Identity", ["o0"], ["o1"]),
        ("Identity", ["i0"], ["o2"]),
        ("Identity", ["w0"], ["o3"]),
    ]
    assert origins == (("n0", 4),)


def test_weights_keep_their_numbers_and_unused_weights_are_absent() -> None:
    model, _ = canonical_model(_model("p_"), WEIGHTS, 20)
    assert [tensor.name for tensor in model.graph.initializer] == ["w0", "c0"]
    weight = model.graph.initializer[0]
    assert (list(weight.dims), weight.data_type, weight.data_location) == (
        [4, 4],
        TensorProto.FLOAT,
        TensorProto.EXTERNAL,
    )
    assert [(entry.key, entry.value) for entry in weight.external_data] == [("location", "w0")]
    assert [value.name for value in model.graph.input] == ["i0"]


def test_canonical_model_does_not_change_its_argument() -> None:
    model = _model("p_")
    before = model.SerializeToString(deterministic=True)
    canonical_model(model, WEIGHTS, 20)
    assert model.SerializeToString(deterministic=True) == before
