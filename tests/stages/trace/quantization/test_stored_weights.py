"""Quantized weights are stored in the type of their quantizer, or stay floats. The results do not change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.fuzz.comparing import differences
from tests.fuzz.pipeline import ModuleCase, build
from trtbuild.errors import ConversionRefused, SourceError
from trtbuild.stages.convert.conversion import convert
from trtbuild.stages.program.functional import Program
from trtbuild.stages.trace.quantization.quantizer import Quantizer, QuantizerLayout

# the fields of a layout: type, axis, smallest number, block
INT8 = QuantizerLayout("int8", 0, -128)
INT4 = QuantizerLayout("int4", None, -8, 32)
FLOAT8 = QuantizerLayout("float8e4m3fn", None, 0)
NVFP4 = QuantizerLayout("float4e2m1", None, 0, 16)


def quantizer(layout: QuantizerLayout, weight: torch.Tensor) -> Quantizer:
    """A quantizer whose scales map the largest weights to the largest number of its type. Layouts with an axis always use
    127."""
    weight = weight.detach().float()
    if layout.block is not None and layout.type == "int4":
        padded = nn.functional.pad(weight, (0, -weight.shape[-1] % layout.block))
        return Quantizer(layout, padded.reshape(-1, layout.block).abs().amax(1) / 7 + 1e-6)
    if layout.axis is not None:
        return Quantizer(layout, weight.flatten(1).abs().amax(1) / 127)
    # float8 ends at 448, and NVFP4 at 6 * 448: the largest float4 number times the largest scale of a block
    return Quantizer(layout, weight.abs().max() / (6 * 448 if layout == NVFP4 else 448))


class Linear(nn.Module):
    def __init__(
        self,
        layout: QuantizerLayout,
        sizes: tuple[int, int] = (64, 16),
        *,
        dtype: torch.dtype = torch.float32,
        inputs: Quantizer | None = None,
        calls: int = 1,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(*sizes, dtype=dtype)
        self.weight_quantizer = quantizer(layout, self.linear.weight)
        self.input_quantizer, self.calls = inputs, calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        results = []
        for call in range(self.calls):
            y = x + call if self.input_quantizer is None else self.input_quantizer(x + call)
            results.append(nn.functional.linear(y, self.weight_quantizer(self.linear.weight), self.linear.bias))
        return torch.stack(results).sum(0)


def stored_types(module: nn.Module, *, sizes: Any = (64,), dtype: str = "float32") -> list[tuple[str, tuple[int, ...]]]:
    """The dtype and shape of each weight that has several axes. Also checks the ONNX model against the module."""
    case = ModuleCase(module.eval(), [(dtype, [(1, 3, 8), *sizes])])
    built = build(case, engines=False)
    comparison = differences(case, built)
    assert not comparison.differences and not comparison.unchecked and comparison.compared
    assert [part.kind for part in built.partitions.partitions] == ["tensorrt"]
    return sorted((weight.dtype, weight.shape) for weight in built.weights if len(weight.shape) > 1)


@pytest.mark.parametrize(
    ("layout", "types"),
    [
        (INT8, [("int8", (16, 64))]),
        (FLOAT8, [("uint8", (16, 64))]),
        (INT4, [("float32", (16, 2)), ("uint8", (16, 32))]),
        (NVFP4, [("uint8", (16, 4)), ("uint8", (16, 32))]),
    ],
)
def test_a_weight_is_stored_in_its_type(layout: QuantizerLayout, types: list[tuple[str, tuple[int, ...]]]) -> None:
    assert stored_types(Linear(layout)) == types


@pytest.mark.parametrize("layout", [INT8, FLOAT8, INT4, NVFP4])
def test_a_float16_weight_is_stored_in_the_type_of_its_quantizer(layout: QuantizerLayout) -> None:
    module = Linear(layout, dtype=torch.float16)
    types = stored_types(module, dtype="float16")
    assert types and not any(dtype == "float16" for dtype, _ in types)


@pytest.mark.parametrize("layout", [INT4, NVFP4])
def test_a_weight_whose_rows_are_not_whole_blocks_is_rounded_and_stays_float(layout: QuantizerLayout) -> None:
    assert stored_types(Linear(layout, (40, 16)), sizes=(40,)) == [("float32", (16, 40))]


@pytest.mark.parametrize(("columns", "block"), [(33, 3), (1, 1)])
def test_a_weight_of_4_bits_with_rows_of_odd_length_is_rounded_and_stays_float(columns: int, block: int) -> None:
    layout = QuantizerLayout("int4", None, -8, block)
    assert stored_types(Linear(layout, (columns, 16)), sizes=(columns,)) == [("float32", (16, columns))]


@pytest.mark.parametrize("sizes", [(32, 0), (0, 32)])
def test_an_empty_weight_in_nvfp4_stays_float(sizes: tuple[int, int]) -> None:
    class Empty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(sizes[::-1]))
            self.quantizer = Quantizer(NVFP4, torch.tensor(0.001))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return nn.functional.linear(x, self.quantizer(self.weight)), x + 1

    case = ModuleCase(Empty().eval(), [("float32", [(1, 3, 8), sizes[0]])])
    built = build(case, engines=False)
    comparison = differences(case, built)
    assert not comparison.differences and not comparison.unchecked and comparison.compared
    assert [(weight.dtype, weight.shape) for weight in built.weights] == [("float32", sizes[::-1])]


def test_a_convolution_weight_that_is_quantized_in_blocks_is_rounded_and_stays_float() -> None:
    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(3, 4, 3)
            self.weight_quantizer = quantizer(INT4, self.convolution.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.conv2d(x, self.weight_quantizer(self.convolution.weight))

    assert stored_types(Convolution(), sizes=(3, 8, 8)) == [("float32", (4, 3, 3, 3))]


@pytest.mark.parametrize("layout", [INT8, INT4, NVFP4])
def test_a_weight_that_is_read_twice_is_stored_once(layout: QuantizerLayout) -> None:
    assert len(stored_types(Linear(layout, calls=2))) == len(stored_types(Linear(layout)))


def test_an_int8_weight_beside_quantized_inputs_stays_float() -> None:
    inputs = Quantizer(QuantizerLayout("int8", None, -128), torch.tensor(0.02))
    assert stored_types(Linear(INT8, inputs=inputs)) == [("float32", (16, 64))]


def test_inputs_in_nvfp4_are_an_error() -> None:
    module = Linear(INT8, inputs=Quantizer(NVFP4, torch.tensor(0.001)))
    with pytest.raises(SourceError, match="'input_quantizer' quantizes a value that is not a weight to NVFP4"):
        build(ModuleCase(module.eval(), [("float32", [(1, 3, 8), 64])]))


@pytest.mark.parametrize("layout", [FLOAT8, QuantizerLayout("float8e4m3fn", 0, 0), INT4])
def test_a_computed_weight_keeps_its_quantizer(layout: QuantizerLayout) -> None:
    class Computed(Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, self.weight_quantizer(self.linear.weight * 1.5))

    case = ModuleCase(Computed(layout).eval(), [("float32", [(1, 3, 8), 64])])
    built = build(case)
    comparison = differences(case, built)
    assert not comparison.differences and not comparison.unchecked and comparison.compared
    assert [part.kind for part in built.partitions.partitions] == ["tensorrt"]
    assert ("float32", (16, 64)) in [(weight.dtype, weight.shape) for weight in built.weights]


def test_rejects_quantizers_in_an_old_opset_and_names_their_calls() -> None:
    built = build(ModuleCase(Linear(INT4).eval(), [("float32", [(1, 3, 8), 64])]), engines=False)
    (part,) = built.partitions.partitions
    program = Program.from_bytes(built.store.get_bytes(built.programs[part.graph]))
    with pytest.raises(
        ConversionRefused, match="the quantizers need ONNX opset 21, and the toolchain takes 17"
    ) as caught:
        convert(program, 17)
    calls = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert [calls[index] for index in caught.value.nodes] == ["trtbuild.dequantize.default"]


def test_a_quantizer_of_a_weight_with_another_cast_is_stored_apart() -> None:
    """A weight that was bfloat16 in between has other numbers."""

    class Casts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.weight = nn.Parameter(torch.randn(16, 64))
            self.quantizer = Quantizer(QuantizerLayout("int8", None, -128), torch.tensor(0.03))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            weights = self.weight, self.weight.to(torch.bfloat16).float()
            direct, cast = (nn.functional.linear(x, self.quantizer(weight)) for weight in weights)
            return direct, cast

    assert stored_types(Casts()) == [("int8", (16, 64))] * 2
