"""Write the quantizers of NVIDIA's Model Optimizer (``modelopt.torch.quantization``) with PyTorch's operators.

Its quantizers cannot be exported, because on the CPU they branch on the values of a tensor (0.47). So each quantizer gets
a new forward with ``quantized_decomposed`` operators.

Rules
1. A replaced quantizer gives the results of the original. To check this, both run on random numbers. A number between two
   steps may be rounded to either step, because the original multiplies by the inverse of a scale.
2. Scales are computed from the calibrated maxima (``amax``) of the traced module. They are not in a weights
   file.
3. int8 quantizers of a tensor or of its channels are replaced. A disabled quantizer only returns its input, and stays. Any
   other quantizer is an error that names the quantizer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch

from trtbuild.errors import SourceError
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.quantization.quantizer import LARGEST_INT8, Quantizer, QuantizerLayout

_MODULE = "modelopt.torch.quantization.nn.modules.tensor_quantizer"
#: How many numbers are compared for each channel, and which share of them may be rounded to the other step (rule 1).
_SAMPLES, _MOST_DIFFERENT = 1024, 0.01

Forward = Callable[[torch.Tensor], torch.Tensor]


def has_quantizers(module: torch.nn.Module) -> bool:
    """Whether Model Optimizer has quantized a module."""
    return any(True for _ in _quantizers(module))


def write_quantizers(module: torch.nn.Module, job: TraceJob, place: Mapping[str, Any]) -> None:
    """Replace the quantizers of `module` in place. `place` is the place where the module is created. Raises SourceError
    (rules 1 and 3), also if the job has ``weights:`` (rule 2)."""
    quantizers = dict(_quantizers(module))
    if not quantizers:
        return
    if job.weights is not None:
        raise SourceError(
            "a model that Model Optimizer has quantized cannot have `weights:`: its scales are not in the file",
            code="weights",
            hint="load the weights in the function that builds the model, before it is quantized",
            **job.place("weights"),
        )
    for name, quantizer in quantizers.items():
        replacement = read_quantizer(name, quantizer, place)
        if replacement is not None:
            quantizer.trtbuild_quantizer = replacement
            quantizer.forward = replacement.forward


def _quantizers(module: torch.nn.Module) -> Any:
    defining_module = sys.modules.get(_MODULE)  # a module with such quantizers has imported it
    if defining_module is None:
        return ()
    return (
        (name, child) for name, child in module.named_modules() if isinstance(child, defining_module.TensorQuantizer)
    )


def read_quantizer(name: str, quantizer: Any, place: Mapping[str, Any]) -> Quantizer | None:
    """The same quantizer with PyTorch's operators; None if the original only returns its input, so that it can be exported.

    `name` and `place` are for messages. Raises SourceError (rules 1 and 3)."""
    if quantizer._disabled or not quantizer._if_quant:
        return None
    if quantizer.pre_quant_scale is not None:
        _refuse(name, "scales its input before it quantizes (SmoothQuant, AWQ)", place)
    if quantizer._num_bits != 8 or quantizer._unsigned:
        _refuse(name, f"quantizes to {_type_text(quantizer)}", place)
    if quantizer.block_sizes is not None or not quantizer.fake_quant or quantizer._dynamic:
        _refuse(name, "quantizes in blocks, or while the model runs", place)
    amax = getattr(quantizer, "_amax", None)
    if amax is None:
        _refuse(name, "is not calibrated", place)
    amax = amax.detach().to("cpu", torch.float32)
    if not bool(torch.isfinite(amax).all()) or bool((amax < 0).any()):
        _refuse(name, "has scales that are negative or not finite", place)
    smallest = -LARGEST_INT8 if quantizer._narrow_range else -LARGEST_INT8 - 1
    if amax.numel() == 1:
        if not float(amax) > 0:
            _refuse(name, "has a scale of 0: all numbers of its calibration were 0", place)
        result = Quantizer(QuantizerLayout("int8", None, smallest), amax.reshape(()) / LARGEST_INT8)
    else:
        if amax.numel() not in amax.shape:
            _refuse(name, "has maxima for several axes", place)
        axis = list(amax.shape).index(amax.numel())
        scale = torch.where(amax > 0, amax / LARGEST_INT8, 1.0).flatten()  # zeros stay zero with any scale
        result = Quantizer(QuantizerLayout("int8", axis, smallest), scale)
    _compare(name, quantizer, result, amax, place)
    return result


def _compare(name: str, original: Forward, forward: Forward, amax: torch.Tensor, place: Mapping[str, Any]) -> None:
    """Raise SourceError if the two functions differ (rule 1)."""
    shape = list(amax.shape) or [1]
    if 1 in shape:
        shape[shape.index(1)] = _SAMPLES
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * amax.clamp(min=1e-30) / 2
    expected, results = original(numbers), forward(numbers)
    difference = (results - expected).abs() / (amax.clamp(min=1e-30) / LARGEST_INT8)  # in steps
    is_other_step = difference > 0.5
    if float(difference.max()) > 1.01 or float(is_other_step.float().mean()) > _MOST_DIFFERENT:
        _refuse(name, "does not quantize as its settings say", place)


def _type_text(quantizer: Any) -> str:
    bits = quantizer._num_bits
    if isinstance(bits, tuple):
        return f"{1 + sum(bits)}-bit floats"
    return f"{'unsigned ' if quantizer._unsigned else ''}{bits}-bit integers"


def _refuse(name: str, problem: str, place: Mapping[str, Any]) -> NoReturn:
    raise SourceError(
        f"the quantizer {name!r} of Model Optimizer {problem}, which trtbuild does not take from a PyTorch model",
        code="quantization",
        hint="quantize with INT8_DEFAULT_CFG, or write the quantized model to an ONNX file and use `onnx:`",
        **place,
    )
