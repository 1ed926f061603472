"""Attach the quantizers of a calibration to the layers of a model, before it is exported.

A layer gets a subclass of its class. With a quantizer for the weight, its `weight` is the rounded weight. With a quantizer
for the input, its forward rounds the first argument. So does a forward that is an attribute of the layer itself, as
accelerate's hooks set it: Python calls it instead of the forward of the class. The names of parameters and modules do not
change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from trtbuild.errors import SourceError
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.quantization.stored import StoredQuantizers


def attach_quantizers(module: torch.nn.Module, quantizers: bytes, job: TraceJob) -> None:
    """Attach the quantizers of a calibration (`StoredQuantizers`) to `module`, in place. Also copy the changed weights of
    the calibration to it.

    From now on, this process does not use the fast path of nn.TransformerEncoderLayer, because that path calls no inner
    layer. Raises SourceError if a calibrated layer or a changed weight is missing, or if such a weight has another
    shape."""
    stored = StoredQuantizers.from_bytes(quantizers)
    torch.backends.mha.set_fastpath_enabled(False)
    layers, parameters = dict(module.named_modules()), dict(module.named_parameters(remove_duplicate=False))
    missing = [path for path in stored.layers if path not in layers]
    missing += [name for name in stored.weights if name not in parameters]
    problems = [f"the model has no {name!r}, which the calibration has found in it" for name in missing]
    problems += [
        f"{name!r} has the shape {list(parameters[name].shape)}, and had {list(value.shape)} in the calibration"
        for name, value in stored.weights.items()
        if name in parameters and parameters[name].shape != value.shape
    ]
    if problems:
        raise SourceError(
            problems[0],
            code="quantization",
            hint="the function that builds the model must return the same modules in every process",
            **job.place("quantize", "source"),
        )
    with torch.no_grad():
        for name, value in stored.weights.items():
            parameters[name].copy_(value)
    for path, roles in stored.layers.items():
        layer: Any = layers[path]
        for role, quantizer in roles.items():
            layer.add_module(f"trtbuild_{role}_quantizer", quantizer)
        own_forward = vars(layer).get("forward")
        if own_forward is not None and "input" in roles:
            layer.forward = _rounding_input(own_forward, layer.trtbuild_input_quantizer)
        layer.__class__ = _quantized_class(layer.__class__, "input" in roles and own_forward is None, "weight" in roles)


def _rounding_input(
    forward: Callable[..., Any], quantizer: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[..., Any]:
    """`forward`, with its first argument rounded. `input` is the name of the argument in nn.Linear."""

    @functools.wraps(forward)
    def rounding(*args: Any, **kwargs: Any) -> Any:
        if args:
            return forward(quantizer(args[0]), *args[1:], **kwargs)
        return forward(**{**kwargs, "input": quantizer(kwargs["input"])})

    return rounding


@functools.cache
def _quantized_class(layer_class: Any, rounds_input: bool, rounds_weight: bool) -> Any:
    """A subclass of `layer_class` that uses the attached quantizers. It has the name of `layer_class`."""
    members: dict[str, Any] = {"__qualname__": layer_class.__qualname__, "__module__": layer_class.__module__}
    if rounds_input:
        # `input` is the name of the argument in nn.Linear
        def forward(self: Any, input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            return layer_class.forward(self, self.trtbuild_input_quantizer(input), *args, **kwargs)

        members["forward"] = forward
    if rounds_weight:
        members["weight"] = property(lambda self: self.trtbuild_weight_quantizer(self._parameters["weight"]))
    return type(layer_class.__name__, (layer_class,), members)
