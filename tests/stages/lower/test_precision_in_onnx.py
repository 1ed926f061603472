"""Half-precision programs agree with eager PyTorch in onnxruntime, and TensorRT-RTX parses them.

For TensorRT 8.6, trtbuild sets the types of the graph on the layers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from tests.toolchain import tensorrt86 as trt
from trtbuild.core.model.precisions import Precisions, module_precisions
from trtbuild.stages.convert.conversion import convert
from trtbuild.stages.lower.run import lower
from trtbuild.toolchain.onnx_files.onnx_outline import FLOAT16, FLOAT32, read_outline
from trtbuild.toolchain.tensorrt8.float_types import float_types
from trtbuild.toolchain.tensorrt8.precision import constrain_layers


def _model(traced: Any, program: Any) -> onnx.ModelProto:
    """The conversion of a lowered program, with the weights of the traced model."""
    model = onnx.load_from_string(convert(program, 20).model)
    values = {**dict(traced.module.named_parameters()), **dict(traced.module.named_buffers())}
    for tensor in model.graph.initializer:
        if tensor.name.startswith("w"):
            value = values[traced.slots[int(tensor.name[1:])].name].detach().numpy()
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    return model


def _parse(model: onnx.ModelProto) -> list[str]:
    """The errors of the parser of TensorRT-RTX."""
    rtx = pytest.importorskip("tensorrt_rtx")
    logger = rtx.Logger(rtx.Logger.ERROR)
    builder = rtx.Builder(logger)
    network = builder.create_network(0)  # TensorRT-RTX has strongly typed networks only
    parser = rtx.OnnxParser(network, logger)
    parser.parse(model.SerializeToString())
    return [str(parser.get_error(index)) for index in range(parser.num_errors)]


@pytest.mark.parametrize("name", ["vit", "bert", "conv", "rms_norm"])
def test_a_half_program_runs_in_onnxruntime_and_parses_in_tensorrt(traced: Any, lowered: Any, name: str) -> None:
    model_case = traced(name)
    model = _model(model_case, lowered(name, "float16"))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    feeds = {i.name: value.numpy() for i, value in zip(session.get_inputs(), model_case.inputs, strict=True)}
    value, expected = session.run(None, feeds)[0], model_case.eager()[0].numpy()
    assert value.dtype == expected.dtype
    assert np.abs(value - expected).max() / np.abs(expected).max() <= 5e-3
    assert _parse(model) == []


def test_a_bfloat16_program_parses_in_tensorrt(traced: Any, lowered: Any) -> None:
    assert _parse(_model(traced("bert"), lowered("bert", "bfloat16"))) == []


@pytest.fixture(scope="module")
def mixed_model(traced: Any, decompositions: Any) -> onnx.ModelProto:
    """BERT in float16, with the first layer in float32 and the feed-forward part of the second layer in bfloat16."""
    entries = module_precisions({"float32": ["*layer.0"], "bfloat16": ["*layer.1.intermediate*", "*layer.1.output*"]})
    model_case = traced("bert")
    return _model(model_case, lower(model_case.program, Precisions("float16", entries), decompositions))


def test_a_program_with_three_types_parses_in_tensorrt(mixed_model: onnx.ModelProto) -> None:
    assert _parse(mixed_model) == []


def test_the_types_of_weakly_typed_layers_are_those_of_the_graph(traced: Any, decompositions: Any) -> None:
    model_case = traced("bert")
    entries = module_precisions({"float32": ["*layer.0"]})
    model = _model(model_case, lower(model_case.program, Precisions("float16", entries), decompositions))
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    element_types = {value.name: value.type.tensor_type.elem_type for value in (*inferred.value_info, *inferred.output)}
    outline = read_outline(model.SerializeToString())
    computed_types = float_types(outline)
    floats = {name: type_ for name, type_ in element_types.items() if type_ in (FLOAT32, FLOAT16)}
    assert {FLOAT32, FLOAT16} == set(floats.values())
    assert {name: computed_types.get(name) for name in floats} == floats

    layers = {
        node.outputs[0]: trt.FakeLayer(
            "MATRIX_MULTIPLY",
            [trt.FakeTensor(name) for name in node.inputs],
            [trt.FakeTensor(name) for name in node.outputs],
        )
        for node in outline.nodes
        if node.operator in ("MatMul", "Gemm")
    }
    config = trt.FakeConfig()
    constrain_layers(trt.MODULE, trt.FakeNetwork([], list(layers.values())), config, outline)
    assert {trt.BuilderFlag.FP16, trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS} <= config.flags
    expected = {FLOAT32: trt.DataType.FLOAT, FLOAT16: trt.DataType.HALF}
    assert {name: layer.precision for name, layer in layers.items()} == {
        name: expected[floats[name]] for name in layers
    }
    assert len({layer.precision for layer in layers.values()}) == 2
