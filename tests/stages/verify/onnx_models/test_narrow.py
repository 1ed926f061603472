"""`convert_to_float32` rewrites ONNX models of 16-bit types: they compute in float32, and round after each node."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from trtbuild.stages.verify.onnx_models.narrow import UnknownElementType, convert_to_float32, has_narrow_types

NARROW = {TensorProto.FLOAT16: torch.float16, TensorProto.BFLOAT16: torch.bfloat16}


def model(
    nodes: list[onnx.NodeProto], element_type: int, out: int | None = None, **constants: np.ndarray
) -> onnx.ModelProto:
    """Return a model from ``i0`` [d0, 4] of type `element_type` to ``o0`` of type `out` (by default `element_type`)."""
    initializers = [
        helper.make_tensor(name, element_type, value.shape, value.reshape(-1)) for name, value in constants.items()
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("i0", element_type, ["d0", 4])],
        [helper.make_tensor_value_info("o0", element_type if out is None else out, None)],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def run(proto: onnx.ModelProto, value: torch.Tensor) -> torch.Tensor:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {"i0": value.float().numpy()})
    return torch.from_numpy(output)


@pytest.mark.parametrize("element_type", NARROW)
def test_every_value_is_rounded(element_type: int) -> None:
    third = np.array([1 / 3] * 4, np.float32)
    nodes = [
        helper.make_node("Mul", ["i0", "c0"], ["v0"]),
        helper.make_node("Add", ["v0", "i0"], ["v1"]),
        helper.make_node("Exp", ["v1"], ["o0"]),
    ]
    converted = convert_to_float32(model(nodes, element_type, c0=third))
    assert not [t for t in converted.graph.initializer if t.data_type != TensorProto.FLOAT]
    dtype = NARROW[element_type]
    value = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = torch.exp(value * torch.tensor(third).to(dtype) + value)
    assert torch.equal(run(converted, value).to(dtype), expected)
    # without the roundings, the result would be different
    assert not torch.equal(expected.float(), torch.exp(value.float() * (4 / 3)))


@pytest.mark.parametrize("element_type", NARROW)
def test_constants_casts_and_values_of_nested_graphs_are_rounded(element_type: int) -> None:
    def branch(name: str, factor: float) -> onnx.GraphProto:
        constant = helper.make_tensor(f"{name}c", element_type, [1], [factor])
        nodes = [
            helper.make_node("Constant", [], [f"{name}k"], value=constant),
            helper.make_node("Mul", ["v0", f"{name}k"], [f"{name}o"]),
        ]
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(f"{name}o", element_type, None)])

    nodes = [
        helper.make_node("Cast", ["i0"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["f"], ["v0"], to=element_type),
        helper.make_node("ReduceMax", ["f"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["b"], to=TensorProto.BOOL),
        helper.make_node("If", ["b"], ["o0"], then_branch=branch("t", 1 / 3), else_branch=branch("e", 3.0)),
    ]
    proto = model(nodes, element_type)
    assert has_narrow_types(proto)
    dtype = NARROW[element_type]
    value = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    result = run(convert_to_float32(proto), value).to(dtype)
    assert torch.equal(result, value * torch.tensor([1 / 3]).to(dtype))


def test_a_model_with_a_16_bit_type_has_narrow_types() -> None:
    proto = model([helper.make_node("Exp", ["i0"], ["o0"])], TensorProto.FLOAT)
    assert not has_narrow_types(proto)
    assert has_narrow_types(
        model(
            [helper.make_node("Cast", ["i0"], ["o0"], to=TensorProto.BFLOAT16)], TensorProto.FLOAT, TensorProto.BFLOAT16
        )
    )


def test_a_weight_of_a_nested_graph_has_a_narrow_type() -> None:
    weight = helper.make_tensor("c", TensorProto.FLOAT16, [4], [1 / 3] * 4)
    body = [helper.make_node("Exp", ["c"], ["e"]), helper.make_node("Cast", ["e"], ["b"], to=TensorProto.FLOAT)]
    branch = helper.make_graph(body, "b", [], [helper.make_tensor_value_info("b", TensorProto.FLOAT, [4])], [weight])
    nodes = [
        helper.make_node("Constant", [], ["yes"], value=helper.make_tensor("yes", TensorProto.BOOL, [], [True])),
        helper.make_node("If", ["yes"], ["v0"], then_branch=branch, else_branch=branch),
        helper.make_node("Mul", ["i0", "v0"], ["o0"]),
    ]
    proto = model(nodes, TensorProto.FLOAT)
    assert has_narrow_types(proto)
    ones = torch.ones(2, 4)
    assert torch.equal(run(convert_to_float32(proto), ones), torch.exp(torch.tensor([1 / 3]).half()).float() * ones)


def test_external_weights_stay_external() -> None:
    proto = model([helper.make_node("Add", ["i0", "w0"], ["o0"])], TensorProto.BFLOAT16, w0=np.ones(4, np.float32))
    (tensor,) = proto.graph.initializer
    tensor.ClearField("raw_data")
    tensor.ClearField("int32_data")
    tensor.data_location = TensorProto.EXTERNAL
    (converted,) = convert_to_float32(proto).graph.initializer
    assert (converted.data_type, converted.data_location) == (TensorProto.FLOAT, TensorProto.EXTERNAL)


def test_rejects_a_value_without_a_type() -> None:
    nodes = [
        helper.make_node("Whatever", ["i0"], ["v0"], domain="elsewhere"),
        helper.make_node("Add", ["v0", "i0"], ["o0"]),
    ]
    with pytest.raises(UnknownElementType, match="Whatever"):
        convert_to_float32(model(nodes, TensorProto.FLOAT16))
