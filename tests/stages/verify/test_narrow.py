"""16-bit models for a runner that has no 16 bits."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from trtbuild.stages.verify.narrow import Untyped, in_float32, is_narrow

NARROW = {TensorProto.FLOAT16: torch.float16, TensorProto.BFLOAT16: torch.bfloat16}


def model(nodes: list[onnx.NodeProto], kind: int, out: int | None = None, **constants: np.ndarray) -> onnx.ModelProto:
    """A model of one input ``i0`` [d0, 4] and one output ``o0``."""
    made = [helper.make_tensor(name, kind, value.shape, value.reshape(-1)) for name, value in constants.items()]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("i0", kind, ["d0", 4])],
        [helper.make_tensor_value_info("o0", kind if out is None else out, None)],
        made,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def run(proto: onnx.ModelProto, value: torch.Tensor) -> torch.Tensor:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"i0": value.float().numpy()})
    return torch.from_numpy(found)


@pytest.mark.parametrize("kind", NARROW)
def test_every_value_is_rounded(kind: int) -> None:
    third = np.array([1 / 3] * 4, np.float32)
    nodes = [
        helper.make_node("Mul", ["i0", "c0"], ["v0"]),
        helper.make_node("Add", ["v0", "i0"], ["v1"]),
        helper.make_node("Exp", ["v1"], ["o0"]),
    ]
    found = in_float32(model(nodes, kind, c0=third))
    assert not [t for t in found.graph.initializer if t.data_type != TensorProto.FLOAT]
    dtype = NARROW[kind]
    value = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    want = torch.exp(value * torch.tensor(third).to(dtype) + value)
    assert torch.equal(run(found, value).to(dtype), want)
    assert not torch.equal(want.float(), torch.exp(value.float() * 1.3333334))


@pytest.mark.parametrize("kind", NARROW)
def test_type_attributes_casts_and_nested_graphs(kind: int) -> None:
    def branch(name: str, by: float) -> onnx.GraphProto:
        constant = numpy_helper.from_array(np.full(1, by, np.float32), f"{name}c")
        constant.CopyFrom(helper.make_tensor(f"{name}c", kind, [1], [by]))
        nodes = [
            helper.make_node("Constant", [], [f"{name}k"], value=constant),
            helper.make_node("Mul", ["v0", f"{name}k"], [f"{name}o"]),
        ]
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(f"{name}o", kind, None)])

    nodes = [
        helper.make_node("Cast", ["i0"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["f"], ["v0"], to=kind),
        helper.make_node("ReduceMax", ["f"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["b"], to=TensorProto.BOOL),
        helper.make_node("If", ["b"], ["o0"], then_branch=branch("t", 1 / 3), else_branch=branch("e", 3.0)),
    ]
    proto = model(nodes, kind)
    assert is_narrow(proto)
    dtype = NARROW[kind]
    value = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    got = run(in_float32(proto), value).to(dtype)
    assert torch.equal(got, value * torch.tensor([1 / 3]).to(dtype))


def test_wide_models_are_not_rounded() -> None:
    proto = model([helper.make_node("Exp", ["i0"], ["o0"])], TensorProto.FLOAT)
    assert not is_narrow(proto)
    assert is_narrow(
        model(
            [helper.make_node("Cast", ["i0"], ["o0"], to=TensorProto.BFLOAT16)], TensorProto.FLOAT, TensorProto.BFLOAT16
        )
    )


def test_weights_that_are_elsewhere_stay_there() -> None:
    proto = model([helper.make_node("Add", ["i0", "w0"], ["o0"])], TensorProto.BFLOAT16, w0=np.ones(4, np.float32))
    (tensor,) = proto.graph.initializer
    tensor.ClearField("raw_data")
    tensor.ClearField("int32_data")
    tensor.data_location = TensorProto.EXTERNAL
    (found,) = in_float32(proto).graph.initializer
    assert (found.data_type, found.data_location) == (TensorProto.FLOAT, TensorProto.EXTERNAL)


def test_a_value_without_a_type_is_refused() -> None:
    nodes = [
        helper.make_node("Whatever", ["i0"], ["v0"], domain="elsewhere"),
        helper.make_node("Add", ["v0", "i0"], ["o0"]),
    ]
    with pytest.raises(Untyped, match="Whatever"):
        in_float32(model(nodes, TensorProto.FLOAT16))
