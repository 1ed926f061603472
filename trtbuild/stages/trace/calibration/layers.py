"""Choose the layers whose values a format rounds, and write Model Optimizer's configuration for a method (SmoothQuant,
AWQ, entropy).

Rules
1. Linear layers and convolutions are rounded. Formats with blocks round linear layers only, because a block is a part of
   a row of a matrix.
2. Model Optimizer's presets leave out layers by their names (``lm_head``, ``router``, …). Here only `exclude` leaves out
   layers by name.
3. A transposed convolution has its output channels in axis 1. With several groups, no axis has all output channels, so
   the layer stays in float with every format. fp8 has one scale for a whole weight in every layer, as in
   ``FP8_DEFAULT_CFG`` of Model Optimizer.
4. Some methods change weights. A weight that two modules share (a linear layer and an embedding, for example) must not
   change, so the layers that use it stay in float with these methods.
5. nn.MultiheadAttention reads the weight of its `out_proj` and does not call that layer, so `out_proj` stays in float.
6. A weight that is computed from other parameters, as by ``weight_norm``, has no quantizer, because its layer has no
   parameter `weight`.
"""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from trtbuild.core.model.quantization import FORMATS
from trtbuild.core.values.module_paths import advice_for_unmatched, covering_module
from trtbuild.errors import SourceError
from trtbuild.stages.trace.calibration.job import CalibrateJob

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
#: Formats with one scale for each block of a weight. A block is a part of a row.
_BLOCK_FORMATS = ("int4_weight_only", "nvfp4")
#: Format → (settings of the quantizers of weights, settings of those of inputs), as in
#: ``modelopt.torch.quantization.config``. The second are None if the format does not round inputs.
_SETTINGS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any] | None]] = {
    "int8": ({"num_bits": 8, "axis": 0}, {"num_bits": 8, "axis": None}),
    "fp8": ({"num_bits": (4, 3), "axis": None}, {"num_bits": (4, 3), "axis": None}),
    "int8_weight_only": ({"num_bits": 8, "axis": 0}, None),
    "int4_weight_only": ({"num_bits": 4, "block_sizes": {-1: 128, "type": "static"}}, None),
    "nvfp4": ({"num_bits": (2, 1), "block_sizes": {-1: 16, "type": "dynamic", "scale_bits": (4, 3)}}, None),
}
#: Methods that also change weights.
CHANGING_METHODS = ("smoothquant", "awq")
#: Method → Model Optimizer's algorithm. For entropy there is no algorithm, so `run.py` sets the scales.
_ALGORITHMS: Mapping[str, Any] = {
    "max": "max",
    "entropy": None,
    "smoothquant": "smoothquant",
    "awq": {"method": "awq_lite", "alpha_step": 0.1},
}


def chosen_layers(module: nn.Module, job: CalibrateJob) -> list[str]:
    """The module paths of the layers that the format rounds. Raises SourceError if there is no such layer, or if a pattern
    of `exclude` matches nothing."""
    quantization = job.quantization
    _check_patterns(module, quantization.exclude, job)
    unchangeable = _shared_weights(module) if quantization.method in CHANGING_METHODS else frozenset()
    excluded = {  # a module may have several paths, and a pattern may match any of them
        id(layer)
        for path, layer in module.named_modules(remove_duplicate=False)
        if any(covering_module(pattern, path) is not None for pattern in quantization.exclude)
    }
    layers = [
        path
        for path, layer in module.named_modules()
        if _fits(layer, quantization.format) and id(layer.weight) not in unchangeable and id(layer) not in excluded
    ]
    if not layers:
        kinds = "linear layer" if quantization.format in _BLOCK_FORMATS else "linear layer or convolution"
        raise SourceError(
            f"the model has no {kinds} for the format {quantization.format}"
            + (" that is not excluded" * bool(quantization.exclude)),
            code="quantization",
            hint="remove `quantize:`, or exclude less",
            **job.model.place("quantize.format", "quantize"),
        )
    return layers


def configuration(module: nn.Module, layers: Sequence[str], job: CalibrateJob) -> dict[str, Any]:
    """Model Optimizer's configuration to round the layers at the paths `layers`, and no others."""
    quantization = job.quantization
    weights, inputs = _SETTINGS[quantization.format]
    if inputs is not None and quantization.method == "entropy":
        inputs = {**inputs, "calibrator": "histogram"}
    entries: list[dict[str, Any]] = [{"quantizer_name": "*", "enable": False}]
    for path in layers:
        # the library reads a name as a pattern of `fnmatch`, in which `[0]` means the character 0
        prefix = glob.escape(f"{path}.") if path else ""
        has_channels_in_axis_1 = isinstance(module.get_submodule(path), _TRANSPOSED) and weights["axis"] is not None
        settings = {**weights, "axis": 1} if has_channels_in_axis_1 else dict(weights)
        entries.append({"quantizer_name": f"{prefix}weight_quantizer", "cfg": settings})
        if inputs is not None:
            entries.append({"quantizer_name": f"{prefix}input_quantizer", "cfg": dict(inputs)})
    return {"quant_cfg": entries, "algorithm": _ALGORITHMS[quantization.method]}


def rounds_inputs(name: str) -> bool:
    """Whether the format `name` rounds not only the weights of layers, but also their inputs."""
    return FORMATS[name].activations is not None


def _shared_weights(module: nn.Module) -> frozenset[int]:
    """The ids of the parameters that several modules have (rule 4). A module with several paths counts once."""
    counts = Counter(id(value) for each in module.modules() for value in each._parameters.values() if value is not None)
    return frozenset(object_id for object_id, count in counts.items() if count > 1)


def _fits(layer: nn.Module, format_name: str) -> bool:
    """Whether a format can round a layer (rules 1, 3, 5 and 6)."""
    if layer._parameters.get("weight") is None or isinstance(layer, NonDynamicallyQuantizableLinear):
        return False
    if isinstance(layer, nn.Linear):
        return True
    if format_name in _BLOCK_FORMATS:
        return False
    return isinstance(layer, _CONVOLUTIONS) or (isinstance(layer, _TRANSPOSED) and layer.groups == 1)


def _check_patterns(module: nn.Module, patterns: Sequence[str], job: CalibrateJob) -> None:
    paths = [path for path, _ in module.named_modules(remove_duplicate=False) if path]
    for pattern in patterns:
        if all(covering_module(pattern, path) is None for path in paths):
            raise SourceError(
                f"no module of the model matches {pattern!r} in `exclude`",
                code="quantization",
                hint=advice_for_unmatched(pattern, paths),
                **job.model.place("quantize.exclude", "quantize"),
            )
