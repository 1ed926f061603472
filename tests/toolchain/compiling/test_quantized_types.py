"""Quantized types that the GPU lacks are refused before TensorRT compiles. Unknown weights get placeholders.

Weights are unknown when the partitioner asks the parser, because they are read later.
"""

from __future__ import annotations

import struct

import pytest
from onnx import TensorProto as T
from onnx import helper as h

from trtbuild.core.model.spec import Target
from trtbuild.errors import ToolchainError
from trtbuild.toolchain.compiling.placeholder_weights import placeholder_weights
from trtbuild.toolchain.compiling.quantized_types import check_quantized_types
from trtbuild.toolchain.onnx_files.onnx_outline import read_outline


def model(kind: int) -> bytes:
    """A model that quantizes its input to the ONNX element type `kind`."""
    zero = h.make_tensor("zero", kind, [], b"\0", raw=True)
    nodes = [h.make_node("QuantizeLinear", ["i0", "scale", "zero"], ["q"], "n0")]
    graph = h.make_graph(nodes, "g", [], [], [zero])
    return bytes(h.make_model(graph).SerializeToString())


@pytest.mark.parametrize(
    ("kind", "sm", "first_sm"),
    [
        (T.FLOAT8E4M3FN, 86, 89),
        (T.FLOAT8E4M3FN, 89, None),
        (T.FLOAT4E2M1, 89, 100),
        (T.INT8, 75, None),
        (T.INT4, 75, 80),
    ],
)
def test_refuses_a_type_for_sms_before_its_first_sm(kind: int, sm: int, first_sm: int | None) -> None:
    outline, target = read_outline(model(kind)), Target("ada", sm=sm)
    if first_sm is None:
        check_quantized_types(outline, target)
        return
    with pytest.raises(ToolchainError, match=f"begins with SM {first_sm}, but the target is for SM {sm}"):
        check_quantized_types(outline, target)


def test_a_target_for_ampere_plus_needs_types_that_sm_80_has() -> None:
    with pytest.raises(ToolchainError, match="the target is for SM 80"):
        check_quantized_types(read_outline(model(T.FLOAT8E4M3FN)), Target("all", sm=89, compatibility="ampere_plus"))


def test_placeholders_are_one_for_scales_and_zero_for_other_weights() -> None:
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
    data = {name: bytes(value) for name, value in placeholder_weights(outline).items()}
    assert data == {"w0": bytes(2), "w1": struct.pack("<2f", 1, 1), "w2": bytes(8)}
