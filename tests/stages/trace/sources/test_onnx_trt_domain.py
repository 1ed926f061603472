"""Operators of Model Optimizer in ONNX files are replaced by ONNX's own operators, rejected, or kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from trtbuild.errors import SourceError
from trtbuild.stages.trace.sources.onnx_trt_domain import replace_trt_operators

JOB: Any = SimpleNamespace(
    source=SimpleNamespace(target="m.onnx"), place=lambda *_: {"file": "trtbuild.yaml", "line": 7}
)


def onnx_model(nodes: list[onnx.NodeProto], initializers: list[T], opset: int = 20) -> onnx.ModelProto:
    """A model whose input x and output y have 128 columns."""
    value = h.make_tensor_value_info
    graph = h.make_graph(nodes, "g", [value("x", T.FLOAT, ["b", 128])], [value("y", T.FLOAT, ["b", 128])], initializers)
    imports = [h.make_opsetid("", opset), h.make_opsetid("trt", 1)]
    return h.make_model(graph, opset_imports=imports, ir_version=10)


def node(operator: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return h.make_node(operator, inputs, [output], output, domain="trt", **attributes)


def fp8_file() -> onnx.ModelProto:
    """A quantizer and a dequantizer, as ``torch.onnx.export`` of a module with FP8_DEFAULT_CFG writes them."""
    nodes = [node("TRT_FP8QuantizeLinear", ["x", "s"], "q"), node("TRT_FP8DequantizeLinear", ["q", "s"], "y")]
    return onnx_model(nodes, [h.make_tensor("s", T.FLOAT, [], [0.01])])


def int4_file(kind: int = T.INT4, opset: int = 21) -> onnx.ModelProto:
    data = bytes(range(256)) if kind == T.INT4 else bytes(2048)
    weight = h.make_tensor("w", kind, [4, 128], data, raw=True)
    nodes = [
        node("TRT_INT4DequantizeLinear", ["w", "s"], "d", axis=1, block_size=64),
        h.make_node("Gemm", ["x", "d"], ["y"], "product", transB=1),
    ]
    return onnx_model(nodes, [weight, h.make_tensor("s", T.FLOAT, [4, 2], [0.5] * 8)], opset)


def results(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"x": x})
    return np.asarray(result)


def test_fp8_quantizers_saturate_at_448_times_the_scale() -> None:
    model = fp8_file()
    replace_trt_operators(model, JOB)
    assert {entry.domain for entry in model.opset_import} == {""}
    x = np.tile(np.array([100, -100, 0.3, 0.0], np.float32), 32).reshape(1, 128)
    np.testing.assert_allclose(results(model, x)[0, :4], [4.48, -4.48, 0.3, 0], rtol=1 / 16)


def test_int4_weights_keep_their_blocks() -> None:
    model = int4_file()
    replace_trt_operators(model, JOB)
    low, high = np.arange(256) & 15, np.arange(256) >> 4  # each byte has two numbers; the first is in the low bits
    numbers = np.stack([low, high], -1).reshape(4, 128)
    weight = (numbers - 16 * (numbers > 7)) * 0.5  # 8 to 15 stand for -8 to -1
    x = np.random.default_rng(0).standard_normal((3, 128)).astype(np.float32)
    np.testing.assert_allclose(results(model, x), x @ weight.T, rtol=1e-4, atol=1e-3)


def test_bytes_of_float8_weights_get_their_type() -> None:
    weight = h.make_tensor("w", T.UINT8, [2], b"\x38\x40", raw=True)  # the numbers 1 and 2
    model = onnx_model(
        [node("TRT_FP8DequantizeLinear", ["w", "s"], "d")], [weight, h.make_tensor("s", T.FLOAT, [], [0.5])]
    )
    replace_trt_operators(model, JOB)
    assert model.graph.initializer[0].data_type == T.FLOAT8E4M3FN


@pytest.mark.parametrize(
    ("model", "problem", "hint"),
    [
        (int4_file(T.FLOAT), "node 'd' of m.onnx dequantizes 'w', which is not quantized yet: it is float", "finish"),
        (int4_file(opset=20), "ONNX has int4 since opset 21, and the file has 20", "opset_version=21"),
        (
            onnx_model([node("TRT_FP4QDQ", ["x"], "y", block_size=16)], []),
            "node 'y' of m.onnx is trt.TRT_FP4QDQ, which stands for weights that are not quantized yet",
            "modelopt.onnx.export",
        ),
        (
            onnx_model([node("TRT_FP4DynamicQuantize", ["x", "s"], "y")], []),
            "trt.TRT_FP4DynamicQuantize, which computes the scales of NVFP4 while the model runs",
            "W4A16_NVFP4_CFG",
        ),
        (
            onnx_model([node("TRT_MXFP8DynamicQuantize", ["x"], "y")], []),
            "trt.TRT_MXFP8DynamicQuantize, which quantizes to MXFP8",
            "FP8_DEFAULT_CFG",
        ),
    ],
)
def test_rejects_operators_without_a_standard_form_and_names_them(
    model: onnx.ModelProto, problem: str, hint: str
) -> None:
    with pytest.raises(SourceError) as caught:
        replace_trt_operators(model, JOB)
    assert problem in caught.value.text and hint in str(caught.value.hint)
    assert (caught.value.file, caught.value.line) == ("trtbuild.yaml", 7)


def test_other_operators_of_the_domain_stay() -> None:
    model = onnx_model([node("SomePlugin", ["x"], "y")], [])
    replace_trt_operators(model, JOB)
    assert model.graph.node[0].domain == "trt" and len(model.opset_import) == 2
