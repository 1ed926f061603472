"""Writes the files of the examples: an exported program, ONNX files, and calibration data. Run this file with python."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import safetensors.torch
import torch
from nets import classifier, images, quantized_by_modelopt, quantized_by_pt2e
from onnx import TensorProto, helper
from onnxruntime import quantization

FILES = Path(__file__).parent / "files"
BATCH = torch.export.Dim("batch", min=1, max=8)


def write_program() -> None:
    """Write a program whose linear layers have int8 inputs and weights. torchao has quantized them."""
    program = torch.export.export(quantized_by_pt2e(), (images()[0],), dynamic_shapes=({0: BATCH},))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it contains paths of this machine
    torch.export.save(program, FILES / "pt2e.pt2")


class Images(quantization.CalibrationDataReader):
    """The calibration data in onnxruntime's form."""

    def __init__(self) -> None:
        self._samples: Iterator[torch.Tensor] = iter(images())

    def get_next(self) -> dict[str, np.ndarray] | None:
        sample = next(self._samples, None)
        return None if sample is None else {"image": sample.numpy()}


def write_by_onnxruntime() -> None:
    """Write a model that onnxruntime's static quantizer has quantized.

    Its layers have int8 inputs, int8 weights with a scale for each channel, and int32 biases.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "float.onnx")
        names = {"input_names": ["image"], "output_names": ["classes"]}
        torch.onnx.export(classifier(), (images()[0],), path, dynamic_shapes=({0: BATCH},), dynamo=True, **names)
        quantization.quantize_static(
            path,
            FILES / "onnxruntime_int8.onnx",
            Images(),
            per_channel=True,
            activation_type=quantization.QuantType.QInt8,
            weight_type=quantization.QuantType.QInt8,
            extra_options={"ActivationSymmetric": True, "WeightSymmetric": True},
        )
    model = onnx.load(FILES / "onnxruntime_int8.onnx")
    for node in model.graph.node:
        node.ClearField("metadata_props")  # they contain paths of this machine
    onnx.save(model, FILES / "onnxruntime_int8.onnx")


def write_by_modelopt() -> None:
    """Write a model whose layers have float8 inputs and weights. It has operators of Model Optimizer's domain ``trt``."""
    torch.onnx.export(
        quantized_by_modelopt("FP8_DEFAULT_CFG"),
        (images()[0],),
        str(FILES / "modelopt_fp8.onnx"),
        input_names=["image"],
        output_names=["classes"],
        dynamic_axes={"image": {0: "batch"}},
        opset_version=19,
        dynamo=False,
    )


def write_int4() -> None:
    """Write a model with int4 weights in blocks of 128. ONNX has int4 from opset 21 on."""
    weights = classifier().hidden.weight.detach().numpy().reshape(64, 2, 128)  # a row is two blocks
    scales = np.abs(weights).max(2, keepdims=True) / 7
    numbers = np.clip(np.rint(weights / scales), -8, 7).astype(np.int8).flatten()
    packed = (numbers[0::2] & 0xF) | ((numbers[1::2] & 0xF) << 4)  # two numbers in a byte, the first in the low bits
    initializers = [
        helper.make_tensor("weights", TensorProto.INT4, [64, 256], packed.astype(np.uint8).tobytes(), raw=True),
        onnx.numpy_helper.from_array(scales.reshape(64, 2).astype(np.float32), "scales"),
    ]
    nodes = [helper.make_node("DequantizeLinear", ["weights", "scales"], ["w"], axis=1, block_size=128)]
    _save("int4.onnx", nodes, initializers, opset=21, ir_version=10)


def write_fp4() -> None:
    """Write a model with float4e2m1 weights in blocks of 16 with float8 scales. ONNX has this type from opset 23 on."""
    codes = np.random.default_rng(0).integers(0, 256, 64 * 128, dtype=np.uint8)  # two weights in a byte
    one_as_float8 = 0x38
    initializers = [
        helper.make_tensor("weights", TensorProto.FLOAT4E2M1, [64, 256], codes.tobytes(), raw=True),
        helper.make_tensor(
            "block_scales", TensorProto.FLOAT8E4M3FN, [64, 16], bytes([one_as_float8] * 64 * 16), raw=True
        ),
        helper.make_tensor("scale", TensorProto.FLOAT, [], [0.01]),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["block_scales", "scale"], ["scales"]),
        helper.make_node("DequantizeLinear", ["weights", "scales"], ["w"], axis=1, block_size=16),
    ]
    _save("fp4.onnx", nodes, initializers, opset=23, ir_version=11)


def _save(
    name: str, nodes: list[onnx.NodeProto], initializers: list[TensorProto], *, opset: int, ir_version: int
) -> None:
    """Write a model that multiplies the pixels by the weights ``w``, which `nodes` compute."""
    value = helper.make_tensor_value_info
    nodes = [
        *nodes,
        helper.make_node("Flatten", ["image"], ["pixels"]),
        helper.make_node("Gemm", ["pixels", "w"], ["classes"], transB=1),
    ]
    inputs, outputs = (
        [value("image", TensorProto.FLOAT, ["batch", 1, 16, 16])],
        [value("classes", TensorProto.FLOAT, ["batch", 64])],
    )
    graph = helper.make_graph(nodes, name.removesuffix(".onnx"), inputs, outputs, initializers)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version), FILES / name
    )


def main() -> None:
    FILES.mkdir(exist_ok=True)
    write_program()
    write_by_onnxruntime()
    write_by_modelopt()
    write_int4()
    write_fp4()
    safetensors.torch.save_file({"image": torch.stack(images())}, FILES / "images.safetensors")


if __name__ == "__main__":
    main()
