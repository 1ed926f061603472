"""A quantized type that a GPU does not have is an error before TensorRT compiles."""

from __future__ import annotations

import pytest
from onnx import TensorProto as T
from onnx import helper as h

from trtbuild.core.model.spec import Target
from trtbuild.errors import ToolchainError
from trtbuild.toolchain.compiling.quantized_types import refuse_types
from trtbuild.toolchain.compiling.unknown_weights import unknown_weights
from trtbuild.toolchain.onnx_files.onnx_outline import read_outline


def model(kind: int) -> bytes:
    zero = h.make_tensor("zero", kind, [], b"\0", raw=True)
    nodes = [h.make_node("QuantizeLinear", ["i0", "scale", "zero"], ["q"], "n0")]
    graph = h.make_graph(nodes, "g", [], [], [zero])
    return bytes(h.make_model(graph).SerializeToString())


@pytest.mark.parametrize(
    ("kind", "sm", "first"),
    [
        (T.FLOAT8E4M3FN, 86, 89),
        (T.FLOAT8E4M3FN, 89, None),
        (T.FLOAT4E2M1, 89, 100),
        (T.INT8, 75, None),
        (T.INT4, 75, 80),
    ],
)
def test_a_type_begins_with_an_sm(kind: int, sm: int, first: int | None) -> None:
    outline, target = read_outline(model(kind)), Target("ada", sm=sm)
    if first is None:
        refuse_types(outline, target)
        return
    with pytest.raises(ToolchainError, match=f"begins with SM {first}, but the target is for SM {sm}"):
        refuse_types(outline, target)


def test_ampere_plus_begins_with_sm_80() -> None:
    with pytest.raises(ToolchainError, match="the target is for SM 80"):
        refuse_types(read_outline(model(T.FLOAT8E4M3FN)), Target("all", sm=89, compatibility="ampere_plus"))


def test_unknown_scales_are_one_and_other_unknown_weights_zero() -> None:
    def weight(name: str, kind: int) -> T:
        tensor = T(name=name, data_type=kind, dims=[2], data_location=T.EXTERNAL)
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", name
        return tensor

    nodes = [
        h.make_node("DequantizeLinear", ["w0", "w1"], ["v0"], "n0"),
        h.make_node("Add", ["v0", "w2"], ["o0"], "n1"),
    ]
    tensors = [weight("w0", T.INT8), weight("w1", T.FLOAT), weight("w2", T.FLOAT)]
    outline = read_outline(h.make_model(h.make_graph(nodes, "g", [], [], tensors)).SerializeToString())
    data = unknown_weights(outline)
    assert {name: bytes(value) for name, value in data.items()} == {
        "w0": bytes(2), "w1": b"\0\0\x80\x3f" * 2, "w2": bytes(8)
    }  # fmt: skip
