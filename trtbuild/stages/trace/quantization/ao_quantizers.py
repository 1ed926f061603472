"""The ``FakeQuantize`` modules of ``torch.ao.quantization``, which ``prepare_qat`` adds to a model.

Such a module may observe its input, to find a scale, and may round its input. Two of its buffers decide this. torch.export
cannot trace a branch on the value of a buffer. So each module gets a new forward without these branches.

Rules
1. A module that observes changes its scale at each call, and an engine cannot do that. So such a module is an error. The
   error names the module and the function that ends the observation.
2. The new forward gives the results of the original. To check this, both run on random numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import torch

from trtbuild.errors import SourceError

_MODULE = "torch.ao.quantization.fake_quantize"
#: How many random numbers are compared for each scale.
_SAMPLES = 1024


def has_fake_quantizers(module: torch.nn.Module) -> bool:
    """Whether a module has modules of the class FakeQuantize."""
    return any(True for _ in _fake_quantizers(module))


def replace_fake_quantizers(module: torch.nn.Module, place: Mapping[str, Any]) -> None:
    """Replace the forwards of FakeQuantize modules in place. `place` has the file and line for errors. Raises
    SourceError (rules 1 and 2)."""
    for name, quantizer in _fake_quantizers(module):
        if bool(quantizer.observer_enabled[0]):
            _refuse(
                name,
                "still observes its input, so it changes its scale at each call",
                "call model.apply(torch.ao.quantization.disable_observer) after the training",
                place,
            )
        forward = _forward_of(quantizer)
        sizes = [_SAMPLES]
        if quantizer.is_per_channel:
            sizes = [*[1] * quantizer.ch_axis, quantizer.scale.numel(), _SAMPLES]
        # about half of the numbers are inside the limits of int8 (127 times the scale), the others are outside
        numbers = torch.randn(sizes, generator=torch.Generator().manual_seed(0)) * 200 * float(quantizer.scale.mean())
        with torch.no_grad():
            is_equal = torch.equal(forward(numbers), quantizer(numbers))
        if not is_equal:
            _refuse(
                name,
                f"is a {type(quantizer).__name__} that does not round as its settings say",
                "use torch.fake_quantize_per_tensor_affine or torch.fake_quantize_per_channel_affine in the model",
                place,
            )
        quantizer.forward = forward


def _fake_quantizers(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    defining_module = sys.modules.get(_MODULE)  # a model with FakeQuantize modules has imported it
    if defining_module is None:
        return iter(())
    children = module.named_modules()
    return ((name, child) for name, child in children if isinstance(child, defining_module.FakeQuantize))


def _forward_of(quantizer: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """The forward of a module that does not observe, for its present settings."""
    limits = (quantizer.activation_post_process.quant_min, quantizer.activation_post_process.quant_max)

    def forward(x: torch.Tensor) -> torch.Tensor:
        if quantizer.is_per_channel:
            return torch.fake_quantize_per_channel_affine(
                x, quantizer.scale, quantizer.zero_point, quantizer.ch_axis, *limits
            )
        return torch.fake_quantize_per_tensor_affine(x, quantizer.scale, quantizer.zero_point, *limits)

    return forward if bool(quantizer.fake_quant_enabled[0]) else lambda x: x


def _refuse(name: str, problem: str, hint: str, place: Mapping[str, Any]) -> NoReturn:
    raise SourceError(f"the quantizer {name!r} {problem}", code="quantization", hint=hint, **place)
