"""Quantized models: their tolerances, wrong scales, the error against the float model, and the removal of quantizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from tests.stages.verify.conftest import ConvertedModel, FunctionModule, convert_module, replace_job
from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.model.comparisons import FloatError, OutputError
from trtbuild.core.model.quantized_types import is_rounded_weight
from trtbuild.stages.program.quantized import register_operators
from trtbuild.stages.program.unquantized import is_quantizer, quantizer_type, without_quantizers
from trtbuild.stages.trace.quantization.fake_quantize import define_fake_kernels
from trtbuild.stages.verify.float_errors import FloatErrors, FloatModel
from trtbuild.stages.verify.job import FloatProgram
from trtbuild.stages.verify.onnx_models.onnx_precisions import onnx_precisions
from trtbuild.stages.verify.run import verify
from trtbuild.stages.verify.running import TorchReference

KERNELS = define_fake_kernels()  # the kernels exist as long as this object
register_operators()

#: The scale of the quantizer of inputs. The largest input is about 4.
STEP = 4 / 127

Function = Callable[[torch.Tensor], torch.Tensor]


def int8(x: torch.Tensor, *, low: int = -128) -> torch.Tensor:
    return torch.fake_quantize_per_tensor_affine(x, STEP, 0, low, 127)


# the arguments of fake_quantize: tensor, scale, type, axis, block size, smallest number


def float8(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.trtbuild.fake_quantize(x, torch.full((), 4 / 448), "float8e4m3fn", 0, 0, 0)


def int8_channels(weight: torch.Tensor) -> torch.Tensor:
    scales, zeros = torch.full((8,), 0.01), torch.zeros(8, dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(weight, scales, zeros, 0, -128, 127)


def int4_blocks(weight: torch.Tensor) -> torch.Tensor:
    return torch.ops.trtbuild.fake_quantize(weight, torch.full((8, 2), 0.03), "int4", 1, 16, -8)


def identity(x: torch.Tensor) -> torch.Tensor:
    return x


def model(inputs: Function, weights: Function, linear: nn.Linear | None = None) -> ConvertedModel:
    """A linear layer from 32 to 8 numbers, with quantizers of its inputs and weights."""
    torch.manual_seed(0)

    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(inputs(x), weights(m.linear.weight), m.linear.bias)

    return convert_module(FunctionModule(run, linear=linear or nn.Linear(32, 8)), [(("b", 32), "float32")])


def with_wrong_scale(converted: ConvertedModel, factor: float) -> ConvertedModel:
    """Return the same model, but its ONNX model multiplies the result of the first dequantizer by `factor`."""

    def change(graph: onnx.GraphProto) -> None:
        nodes = list(graph.node)
        (position, node), *_ = ((k, node) for k, node in enumerate(nodes) if node.op_type == "DequantizeLinear")
        result, node.output[0] = node.output[0], "before"
        graph.initializer.append(onnx.numpy_helper.from_array(np.float32(factor), "factor"))
        nodes.insert(position + 1, onnx.helper.make_node("Mul", ["before", "factor"], [result]))
        nodes = [onnx.NodeProto.FromString(each.SerializeToString()) for each in nodes]  # copies outside the graph
        del graph.node[:]
        graph.node.extend(nodes)

    return converted.altered(change)


CASES = [
    (int8, identity, "int8", 4e-2),
    (int8, int8_channels, "int8", 4e-2),
    (identity, int8_channels, "int8", 4e-2),
    (float8, int8_channels, "float8e4m3fn", 1.1e-1),
    # a quantizer of weights counts as int8, because PyTorch and the ONNX model round the same weights
    (identity, int4_blocks, "int8", 4e-2),
]


@pytest.mark.parametrize(("inputs", "weights", "type_", "tolerance"), CASES)
def test_a_quantized_model_has_the_tolerance_of_its_format(
    inputs: Function, weights: Function, type_: str, tolerance: float
) -> None:
    converted = model(inputs, weights)
    report = verify(converted.job, converted.read)
    assert report.status == report.whole.status == "right"
    assert (report.whole.precision, report.whole.tolerance) == (type_, tolerance)
    assert onnx_precisions(converted.blobs[converted.job.onnx[converted.graph]], ["float32"], 1) == [type_]


@pytest.mark.parametrize(("inputs", "weights", "type_", "tolerance"), CASES)
@pytest.mark.parametrize("direction", [1, -1])
def test_a_wrong_scale_is_found(
    inputs: Function, weights: Function, type_: str, tolerance: float, direction: int
) -> None:
    """The scale is wrong by twice the tolerance: 8 % for int8, and 22 % for float8e4m3fn."""
    converted = with_wrong_scale(model(inputs, weights), 1 + direction * 2 * tolerance)
    report = verify(converted.job, converted.read)
    assert report.status == "wrong" and report.whole.error > tolerance


def error_of(converted: ConvertedModel) -> FloatError:
    report = verify(converted.job, converted.read)
    assert report.float_error is not None
    return report.float_error


def test_the_error_against_the_float_model_is_the_error_of_the_rounding() -> None:
    linear = nn.Linear(32, 8)
    error = error_of(model(int8, int8_channels, linear))
    torch.manual_seed(1)
    linear.requires_grad_(requires_grad=False)
    x = torch.randn(1000, 32)
    quantized = nn.functional.linear(int8(x), int8_channels(linear.weight), linear.bias)
    expected = (quantized - linear(x)).abs() / linear(x).abs().max()
    (output,) = error.outputs
    assert error.unknown == "" and error.largest == output.largest
    # the inputs of the verification are not `x`, and have far fewer rows
    assert 0.3 < output.largest / float(expected.max()) < 3 and 0.3 < output.mean / float(expected.mean()) < 3


def test_a_coarser_format_has_a_larger_error() -> None:
    errors = [error_of(model(inputs, identity)).largest for inputs in (int8, lambda x: int8(x / 8) * 8, float8)]
    assert errors[0] < errors[1] and errors[0] < errors[2]


def test_a_model_without_quantizers_has_no_error_against_a_float_model() -> None:
    converted = model(identity, identity)
    assert verify(converted.job, converted.read).float_error is None


def _linear_with_stored_weights(m: Any, x: torch.Tensor) -> torch.Tensor:
    weight = torch.ops.trtbuild.dequantize(m.numbers, m.scales, "int4", 1, 16)
    return nn.functional.linear(x, weight)


def _with_stored_weights(function: Any) -> ConvertedModel:
    module = FunctionModule(function)
    module.register_buffer("numbers", torch.randint(0, 256, (8, 16), dtype=torch.uint8))
    module.register_buffer("scales", torch.full((8, 2), 0.03))
    return convert_module(module, [(("b", 32), "float32")])


def test_the_error_of_stored_weights_is_unknown() -> None:
    converted = _with_stored_weights(_linear_with_stored_weights)
    report = verify(converted.job, converted.read)
    assert report.whole.precision == "float32" and report.status == "right"
    assert report.float_error == FloatError(
        outputs=[], unknown="unknown for weights, whose floats trtbuild does not have (int4)"
    )


def test_the_trace_of_the_float_model_gives_the_error_of_stored_weights() -> None:
    converted = _with_stored_weights(_linear_with_stored_weights)
    linear = nn.Linear(32, 8, bias=False).requires_grad_(requires_grad=False)
    source = convert_module(FunctionModule(lambda m, x: m.linear(x), linear=linear), [(("b", 32), "float32")])
    converted.blobs.update(source.blobs)
    float_program = FloatProgram(source.job.program, graph="", weights=source.job.weights)
    error = error_of(replace_job(converted, float_program=float_program))
    assert error.unknown == ""

    numbers, scales = converted.job.weights
    weight = torch.ops.trtbuild.dequantize(_tensor(converted, numbers), _tensor(converted, scales), "int4", 1, 16)
    torch.manual_seed(1)
    x = torch.randn(1000, 32)
    expected = ((x @ weight.T) - linear(x)).abs() / linear(x).abs().max()
    (output,) = error.outputs
    assert 0.3 < output.largest / float(expected.max()) < 3


def _tensor(converted: ConvertedModel, weight: Weight) -> torch.Tensor:
    return torch.frombuffer(bytearray(converted.read(weight.sha256)), dtype=getattr(torch, weight.dtype)).reshape(
        weight.shape
    )


def test_weights_that_the_trace_has_rounded_are_unknown() -> None:
    for inputs in (identity, int8):
        error = error_of(replace_job(model(inputs, identity), has_rounded_weights=True))
        assert "does not have (rounded floats)" in error.unknown and bool(error.outputs) == (inputs is int8)
    assert is_rounded_weight("a.weight:rounded") and is_rounded_weight("a.weight:rounded2")
    assert not is_rounded_weight("a.rounded") and not is_rounded_weight("a.weight:scales")


@pytest.mark.parametrize(
    ("result", "expected", "problem"),
    [
        ([float("nan"), 1.0], [1.0, 1.0], "NaN or infinite"),
        ([1.0], [1.0, 1.0], "has the shape"),
        ([1.0, 0.0], [0.0, 0.0], "is not zero"),
        ([1.0, 1.0], [1.0, float("inf")], ""),
        ([0.0, 0.0], [0.0, 0.0], ""),
    ],
)
def test_an_output_that_cannot_be_compared_is_unknown(result: list[float], expected: list[float], problem: str) -> None:
    errors = FloatErrors(FloatModel(lambda _: [torch.tensor(expected)], ""))
    errors.add([torch.tensor(result)], [])
    error = errors.result()
    assert problem in error.unknown and bool(error.unknown) == bool(problem)
    assert (error.why_rejected(0.5) is None) == (not problem)


def test_a_float_model_with_other_outputs_is_unknown() -> None:
    errors = FloatErrors(FloatModel(lambda _: [], ""))
    errors.add([torch.zeros(1)], [])
    assert "has 0 outputs instead of 1" in errors.result().unknown


def test_the_error_of_inputs_is_known_beside_stored_weights() -> None:
    error = error_of(_with_stored_weights(lambda m, x: _linear_with_stored_weights(m, int8(x))))
    assert error.outputs[0].largest > 0 and error.unknown.startswith("unknown for weights")


def test_without_a_traced_program_the_programs_of_the_partitions_are_used() -> None:
    converted = model(int8, int8_channels)
    whole, parts = error_of(converted), error_of(replace_job(converted, program=""))
    assert parts.unknown == "" and parts.largest == pytest.approx(whole.largest, rel=1e-3)


def test_an_onnx_model_has_no_float_model() -> None:
    converted = replace_job(model(int8, int8_channels), program="", programs={}, by_onnx=True)
    report = verify(converted.job, converted.read)
    assert report.float_error == FloatError(outputs=[], unknown="unknown for a model that comes as ONNX")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FloatError(outputs=[OutputError(output=0, largest=0.05, mean=0.01)], unknown=""), None),
        (FloatError(outputs=[OutputError(output=0, largest=0.051, mean=0.01)], unknown=""), "is 5.1e-02, but"),
        (
            FloatError(outputs=[OutputError(output=0, largest=0.01, mean=0.01)], unknown="unknown for x"),
            "unknown for x",
        ),
        (FloatError(outputs=[], unknown=""), "unknown: no output could be compared"),
        (FloatError(outputs=[OutputError(output=0, largest=float("nan"), mean=0.0)], unknown=""), "is nan, but"),
    ],
)
def test_an_error_is_rejected_unless_it_is_known_to_be_within_the_limit(error: FloatError, reason: str | None) -> None:
    why_rejected = error.why_rejected(0.05)
    if reason is None:
        assert why_rejected is None
    else:
        assert why_rejected is not None and reason in why_rejected


# -- programs without quantizers


def _decomposed(x: torch.Tensor, between: Function = identity, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    operators = torch.ops.quantized_decomposed
    numbers = between(operators.quantize_per_tensor(x, STEP, 0, -128, 127, dtype))
    return operators.dequantize_per_tensor(numbers, STEP, 0, -128, 127, dtype)


@pytest.mark.parametrize(
    "between", [identity, lambda q: q.reshape(-1, 4, 8).transpose(1, 2), lambda q: q.unsqueeze(0).expand(2, -1, -1)]
)
def test_a_quantizer_is_removed_with_its_dequantizers(between: Function) -> None:
    converted = convert_module(FunctionModule(lambda m, x: _decomposed(x, between) * 2), [(("b", 32), "float32")])
    without = without_quantizers(converted.program)
    assert (without.removed, without.stored, without.left) == (1, (), ())
    x = torch.randn(3, 32)
    (result,) = TorchReference.run_program(without.program, [], [x])
    torch.testing.assert_close(result, between(x) * 2)


def test_a_quantizer_whose_numbers_are_returned_is_left() -> None:
    def run(m: Any, x: torch.Tensor) -> Any:
        numbers = torch.ops.quantized_decomposed.quantize_per_tensor(x, STEP, 0, -128, 127, torch.int8)
        return numbers.float(), torch.ops.quantized_decomposed.dequantize_per_tensor(
            numbers, STEP, 0, -128, 127, torch.int8
        )

    without = without_quantizers(convert_module(FunctionModule(run), [(("b", 32), "float32")]).program)
    assert without.removed == 0 and without.left == ("quantized_decomposed.quantize_per_tensor.default",)


def test_every_dequantizer_of_an_input_is_left() -> None:
    def run(m: Any, x: torch.Tensor) -> Any:
        operators = torch.ops.quantized_decomposed
        scales, zeros = torch.full((32,), STEP), torch.zeros(32, dtype=torch.int64)
        return (
            operators.dequantize_per_tensor(x, STEP, 0, -128, 127, torch.int8),
            operators.dequantize_per_channel(x, scales, zeros, 1, -128, 127, torch.int8),
        )

    without = without_quantizers(convert_module(FunctionModule(run), [(("b", 32), "int8")]).program)
    assert without.left == tuple(
        f"quantized_decomposed.dequantize_per_{kind}.default" for kind in ("tensor", "channel")
    )


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (int8, "int8"),
        (lambda x: int8(x, low=-127), "int8"),
        (lambda x: torch.fake_quantize_per_tensor_affine(x, STEP, 0, -8, 7), "int4"),
        (float8, "float8e4m3fn"),
        (lambda x: torch.ops.trtbuild.fake_quantize_two_levels(x, torch.full((), 0.01), 16), "float4e2m1"),
        (_decomposed, "int8"),
        (int4_blocks, "int4"),
    ],
)
def test_each_quantizer_has_a_type(function: Function, expected: str) -> None:
    exported = torch.export.export(FunctionModule(lambda m, x: function(x)), (torch.zeros(8, 32),))
    (node,) = (node for node in exported.graph.nodes if is_quantizer(node))
    assert quantizer_type(node) == expected
