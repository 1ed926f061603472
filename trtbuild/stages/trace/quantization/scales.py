"""Reject scales that no quantizer can have: 0, negative, infinite or NaN.

PyTorch divides by the scale, and TensorRT takes positive scales only. Without this check, a quantizer with such a scale
would stay in PyTorch, and would compute wrong numbers or NaN.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from trtbuild.errors import SourceError
from trtbuild.stages.program.quantized import register_operators
from trtbuild.stages.trace.job import TraceJob

_aten = torch.ops.aten


def refuse_scales(graph: torch.fx.Graph, values: Mapping[torch.fx.Node, torch.Tensor], job: TraceJob) -> None:
    """Raise SourceError for the first quantizer whose scale is not positive and finite.

    `values` are the values of weights and constants. A scale without a value is not checked."""
    register_operators()
    quantized = torch.ops.quantized_decomposed
    packets = (
        *(quantized.quantize_per_tensor, quantized.quantize_per_channel),
        *(_aten.fake_quantize_per_tensor_affine, _aten.fake_quantize_per_channel_affine),
    )
    for node in graph.nodes:
        if node.op != "call_function" or getattr(node.target, "overloadpacket", None) not in packets:
            continue
        scale = node.args[1]
        numbers = values.get(scale) if isinstance(scale, torch.fx.Node) else torch.tensor(scale, dtype=torch.float64)
        if numbers is None:
            continue  # the scale is computed, or comes from a weights file
        wrong = numbers[~(torch.isfinite(numbers) & (numbers > 0))].flatten()
        if wrong.numel():
            modules = list((node.meta.get("nn_module_stack") or {}).values())
            path = modules[-1][0] if modules else ""
            raise SourceError(
                f"a quantizer of {f'module {path!r}' if path else 'the model'} has the scale {float(wrong[0]):g}",
                code="quantization",
                hint="scales are positive: calibrate with data that is not 0, and keep the scale away from 0 by an eps",
                **job.place("source"),
            )
