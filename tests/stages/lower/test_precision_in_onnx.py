"""Half programs can be converted, equal eager in onnxruntime, and can be parsed as strongly typed networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from trtbuild.stages.convert.conversion import convert


def _model(traced: Any, program: Any) -> onnx.ModelProto:
    model = onnx.load_from_string(convert(program, 20).model)
    values = {**dict(traced.module.named_parameters()), **dict(traced.module.named_buffers())}
    for tensor in model.graph.initializer:
        if tensor.name.startswith("w"):
            value = values[traced.slots[int(tensor.name[1:])].name].detach().numpy()
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    return model


def _parse(model: onnx.ModelProto) -> list[str]:
    trt = pytest.importorskip("tensorrt_rtx")
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)  # TensorRT-RTX has strongly typed networks only
    parser = trt.OnnxParser(network, logger)
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
