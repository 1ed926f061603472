"""Write the quantizers of NVIDIA's Model Optimizer (``modelopt.torch.quantization``) with PyTorch's operators.

These quantizers cannot be exported, because on the CPU they branch on the values of a tensor (version 0.47). So each
quantizer gets a new forward with operators that torch.export can trace (`quantizer.py`).

Rules
1. A new quantizer gives the results of the original. To check this, both run on random numbers, unless the original
   only scales its input. The new quantizer may round a few numbers to the neighbor of the original's result, because it
   divides by a scale, and the original multiplies by the scale's inverse.
2. Scales are computed from the calibrated maxima (``amax``) of the traced module. A weights file does not contain them.
3. The table of `modelopt_layouts` lists the quantizers that are replaced. A disabled quantizer is replaced only if it
   scales its input (SmoothQuant, AWQ); otherwise it returns its input unchanged. Any other quantizer is an error that names
   the quantizer.
4. Model Optimizer's quantizer for NVFP4 needs a GPU (0.47). So the new quantizer is compared with the class
   `NVFP4QTensor`, which packs weights.
5. The fast path of nn.TransformerEncoderLayer reads the weights of the inner layers, and calls no layer. torch.export does
   not follow it. So a process that has replaced quantizers does not use it any more.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import torch

from trtbuild.errors import SourceError
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.quantization.modelopt_layouts import (
    UnknownLayout,
    comparison_shape,
    largest_numbers,
    layout_of,
    scale_of,
)
from trtbuild.stages.trace.quantization.quantizer import FLOAT4, FLOAT8, INT4, INT8, Quantizer

_MODULE = "modelopt.torch.quantization.nn.modules.tensor_quantizer"
_MODULE_OF_NVFP4 = "modelopt.torch.quantization.qtensor.nvfp4_tensor"
#: At least this many numbers are compared for each scale, if the quantizer accepts inputs of that size.
_SAMPLES = 1024
#: The share of numbers that may be rounded to the neighbor of the original's result (rule 1).
_MAX_NEIGHBOR_SHARE = 0.01
#: Type → the largest distance between two neighbors among its numbers, relative to its largest number.
_LARGEST_STEPS = {INT8: 1 / 127, INT4: 1 / 7, FLOAT8: 32 / 448, FLOAT4: 2 / 6}
_HINT = (
    "quantize with INT8_DEFAULT_CFG, INT8_WEIGHT_ONLY_CFG, FP8_DEFAULT_CFG, INT4_AWQ_CFG or W4A16_NVFP4_CFG, or "
    "write the quantized model to an ONNX file and use `onnx:`"
)

Forward = Callable[[torch.Tensor], torch.Tensor]


def has_quantizers(module: torch.nn.Module) -> bool:
    """Whether Model Optimizer has quantized a module."""
    return any(True for _ in quantizers_of(module))


def replace_modelopt_quantizers(module: torch.nn.Module, job: TraceJob, place: Mapping[str, Any]) -> None:
    """Replace the quantizers of `module` in place. `place` has the file and line for errors. Raises SourceError
    (rules 1 and 3), also if the job has ``weights:`` (rule 2). From now on, this process does not use the fast path of
    nn.TransformerEncoderLayer (rule 5)."""
    quantizers = dict(quantizers_of(module))
    if not quantizers:
        return
    if job.weights is not None:
        raise SourceError(
            "a model that Model Optimizer has quantized cannot have `weights:`: its scales are not in the file",
            code="weights",
            hint="load the weights in the function that builds the model, before it is quantized",
            **job.place("weights"),
        )
    torch.backends.mha.set_fastpath_enabled(False)
    for name, quantizer in quantizers.items():
        replacement = read_quantizer(name, quantizer, place)
        if replacement is not None:
            quantizer.trtbuild_quantizer = replacement
            quantizer.forward = replacement.forward


def quantizers_of(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """The quantizers that Model Optimizer has added to a module, with their paths."""
    defining_module = sys.modules.get(_MODULE)  # if `module` has such quantizers, `_MODULE` is imported already
    if defining_module is None:
        return
    for name, child in module.named_modules():
        if isinstance(child, defining_module.TensorQuantizer):
            yield name, child


def read_quantizer(name: str, quantizer: Any, place: Mapping[str, Any], hint: str = _HINT) -> Quantizer | None:
    """The same quantizer, written with operators that torch.export can trace; None if `quantizer` only returns its input.

    `name` is the path of `quantizer`; `place` and `hint` are for messages. Raises SourceError (rules 1 and 3)."""
    pre_scale = quantizer.pre_quant_scale
    try:
        layout = layout_of(quantizer)
        if pre_scale is not None and not bool(torch.isfinite(pre_scale).all()):
            raise UnknownLayout("scales its input by numbers that are not finite")
        if layout.type is None:
            return None if pre_scale is None else Quantizer(layout, pre_scale=pre_scale)
        result = Quantizer(layout, scale_of(quantizer, layout, _reads_weight(name)), pre_scale)
        _compare(quantizer, result)
    except UnknownLayout as error:
        _refuse(name, str(error), place, hint)
    return result


def _reads_weight(name: str) -> bool:
    """Whether a quantizer reads a weight, by its path. Model Optimizer calls it `weight_quantizer`, and numbers those of a
    list or a sequence: ``experts.gate_weight_quantizers.0``."""
    role = next((part for part in reversed(name.split(".")) if not part.isdigit()), "")
    return role.endswith(("weight_quantizer", "weight_quantizers"))


def _compare(original: Any, quantizer: Quantizer) -> None:
    """Raise UnknownLayout if the two quantizers give different results (rule 1)."""
    layout, scale = quantizer.layout, quantizer.scale
    assert layout.type is not None and scale is not None
    shape = comparison_shape(original, layout, _SAMPLES)
    largest = largest_numbers(original, layout, shape)
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * largest / 2
    if quantizer.pre_scale is not None:
        numbers = numbers / torch.where(quantizer.pre_scale == 0, 1, quantizer.pre_scale)
    forward = _nvfp4_reference(original, scale, quantizer.pre_scale) if layout.type == FLOAT4 else original
    with torch.no_grad():
        expected, results = forward(numbers), quantizer(numbers)
    difference = (results - expected).abs()
    is_other = difference > 1e-4 * torch.maximum(results.abs(), expected.abs())
    is_too_far = difference > 1.01 * _LARGEST_STEPS[layout.type] * largest
    if bool(is_too_far.any()) or float(is_other.float().mean()) > _MAX_NEIGHBOR_SHARE:
        raise UnknownLayout("does not quantize as its settings say")


def _nvfp4_reference(original: Any, scale: torch.Tensor, pre_scale: torch.Tensor | None) -> Forward:
    """A function that converts numbers to NVFP4 and back with `NVFP4QTensor` (rule 4)."""
    packed_type = importlib.import_module(_MODULE_OF_NVFP4).NVFP4QTensor
    block = original.block_sizes[-1]

    def forward(x: torch.Tensor) -> torch.Tensor:
        x = x if pre_scale is None else x * pre_scale
        packed, block_scales, _ = packed_type.quantize(x, block, weights_scaling_factor_2=scale)
        result: torch.Tensor = packed.dequantize(
            dtype=torch.float32, scale=block_scales, double_scale=scale, block_sizes={-1: block}
        )
        return result

    return forward


def _refuse(name: str, problem: str, place: Mapping[str, Any], hint: str) -> NoReturn:
    raise SourceError(
        f"the quantizer {name!r} of Model Optimizer {problem}, which trtbuild does not take from a PyTorch model",
        code="quantization",
        hint=hint,
        **place,
    )
