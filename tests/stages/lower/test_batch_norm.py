"""Batch normalization in half precision, with float32 parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto
from torch import nn

from trtbuild.stages.convert.conversion import convert
from trtbuild.stages.program.functional import Program


class Block(nn.Module):
    def __init__(self, *, affine: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8, affine=affine)
        self.head = nn.Conv2d(8, 4, 3, bias=False)
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)
        nn.init.normal_(self.norm.running_mean)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.conv(x)).relu())


class NormOfInput(nn.Module):
    """A normalization of inputs that may be too large for half."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.lin = nn.BatchNorm1d(8), nn.Linear(8, 4)
        self.norm.running_var.fill_(1e12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(self.norm(x))


class NormBeforeSoftmax(nn.Module):
    """A normalization whose only reader computes in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.norm = nn.Linear(8, 4), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.lin(x)).softmax(-1)


def norm_of(program: Program) -> torch.fx.Node:
    (norm,) = (node for node in program.graph.nodes if "batch_norm" in str(node.target))
    return norm


def dtypes(node: torch.fx.Node) -> tuple[torch.dtype, torch.dtype, set[torch.dtype]]:
    """The dtypes of the result, of the input, and of the parameters."""
    input_dtype, *parameters = (source.meta["val"].dtype for source in node.all_input_nodes)
    return node.meta["val"][0].dtype, input_dtype, set(parameters)


@pytest.mark.parametrize(("precision", "half"), [("float16", torch.float16), ("bfloat16", torch.bfloat16)])
def test_after_a_convolution_the_norm_is_half_and_its_parameters_are_float32(
    lower_module: Callable[..., Any], precision: str, half: torch.dtype
) -> None:
    traced, program = lower_module(Block(), [torch.randn(2, 3, 8, 8)], precision)
    assert dtypes(norm_of(program)) == (half, half, {torch.float32})
    casts = [str(node.args[0]) for node in program.graph.nodes if str(node.target) == "aten._to_copy.default"]
    assert len(casts) == 4 and not any("norm" in name for name in casts)  # input, weights of two convolutions, output
    result, expected = traced.run(program)[0], traced.eager()[0]
    assert (result - expected).abs().max() / expected.abs().max() < (4e-3 if half is torch.float16 else 3e-2)


def test_a_norm_of_an_input_is_computed_in_float32(lower_module: Callable[..., Any]) -> None:
    inputs = [torch.randn(4, 8) * 1e6]  # beyond float16
    traced, program = lower_module(NormOfInput(), inputs, "float16")
    assert dtypes(norm_of(program)) == (torch.float32, torch.float32, {torch.float32})
    result, expected = traced.run(program)[0], traced.eager()[0]
    assert result.isfinite().all() and (result - expected).abs().max() / expected.abs().max() < 5e-3


def test_a_norm_with_only_float32_readers_is_float32(lower_module: Callable[..., Any]) -> None:
    _, program = lower_module(NormBeforeSoftmax(), [torch.randn(4, 8)], "float16")
    assert dtypes(norm_of(program))[0] is torch.float32


@pytest.mark.parametrize(("affine", "input_type"), [(True, TensorProto.FLOAT16), (False, TensorProto.FLOAT)])
@pytest.mark.parametrize("opset", [17, 20])
def test_the_norm_has_the_same_dtypes_in_onnx(
    lower_module: Callable[..., Any], affine: bool, input_type: int, opset: int
) -> None:
    """A norm without weight and bias stays in float32, because the conversion would create both in half."""
    traced, program = lower_module(Block(affine=affine), [torch.randn(2, 3, 8, 8)], "float16")
    model = onnx.load_from_string(convert(program, opset).model)
    values = {**dict(traced.module.named_parameters()), **dict(traced.module.named_buffers())}
    for tensor in model.graph.initializer:
        if tensor.name.startswith("w"):
            value = values[traced.slots[int(tensor.name[1:])].name].detach().numpy()
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    (norm,) = (node for node in model.graph.node if node.op_type == "BatchNormalization")
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    element_types = {value.name: value.type.tensor_type.elem_type for value in inferred.graph.value_info}
    element_types |= {tensor.name: tensor.data_type for tensor in inferred.graph.initializer}
    assert [element_types[name] for name in norm.input] == [input_type, *[TensorProto.FLOAT] * 4]
    assert element_types[norm.output[0]] == input_type
    session = onnxruntime.InferenceSession(model.SerializeToString())
    result = session.run(None, {session.get_inputs()[0].name: traced.inputs[0].numpy()})[0]
    expected = traced.eager()[0].numpy()
    assert np.abs(result - expected).max() / np.abs(expected).max() < 4e-3
