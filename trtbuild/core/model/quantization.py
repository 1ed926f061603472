"""The field ``quantize:`` of a model: the types to which its layers are rounded, and the method that finds the scales.

A method has the name of Model Optimizer's algorithm, with two exceptions: ``awq`` is the algorithm ``awq_lite``, and
``entropy`` is a calibrator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trtbuild.core.values.encoding import Value, from_json, to_json_in_order


@dataclass(frozen=True)
class Format:
    """One format: the types to which a layer's weights and activations are rounded.

    `activations` is None if activations are not rounded. `methods` are the methods for this format, the default first.
    Those in `methods_without_data` need no calibration data, because they look at the weights only.
    """

    weights: str
    activations: str | None
    methods: tuple[str, ...]
    methods_without_data: tuple[str, ...] = ()

    @property
    def types(self) -> tuple[str, ...]:
        return (self.weights,) if self.activations is None else tuple(dict.fromkeys((self.weights, self.activations)))


#: Name → format. Source of the methods: Model Optimizer 0.47 (``modelopt.torch.quantization.config``: `algorithm`; entropy:
#: ``calib.HistogramCalibrator``).
FORMATS: Mapping[str, Format] = {
    "int8": Format("int8", "int8", ("max", "entropy", "smoothquant")),
    "fp8": Format("float8e4m3fn", "float8e4m3fn", ("max",)),
    "int8_weight_only": Format("int8", None, ("max",), ("max",)),
    "int4_weight_only": Format("int4", None, ("max", "awq"), ("max",)),
    #: `awq` is missing, because Model Optimizer finds the scales of AWQ for NVFP4 on a GPU only.
    "nvfp4": Format("float4e2m1", None, ("max",), ("max",)),
}


@dataclass(frozen=True)
class Calibration:
    """The source of calibration data: a callable (``module:name``) or a safetensors file, relative to the project.

    Exactly one of `python` and `safetensors` is set. `samples` is the number of samples to use, or None for all samples. A
    sample has the inputs of one call of the model. `kwargs` are for the callable.
    """

    python: str | None = None
    safetensors: str | None = None
    kwargs: Mapping[str, Value] = field(default_factory=dict)
    samples: int | None = None


@dataclass(frozen=True)
class Quantization:
    """The fields of ``quantize:``. `format` is a name in `FORMATS`.

    `exclude` has patterns of module paths. Matching modules, and all modules inside them, are not quantized."""

    format: str
    method: str = "max"
    calibration: Calibration | None = None
    exclude: tuple[str, ...] = ()

    @property
    def needs_data(self) -> bool:
        return self.method not in FORMATS[self.format].methods_without_data

    def to_json(self) -> dict[str, Any]:
        """The JSON form. Floats in kwargs keep their bits, and mappings inside kwargs their order."""
        data = self.calibration
        return {
            "format": self.format,
            "method": self.method,
            "calibration": None
            if data is None
            else {**vars(data), "kwargs": to_json_in_order(dict(sorted(data.kwargs.items())))},
            "exclude": list(self.exclude),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Quantization:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError for data of another form."""
        calibration = data["calibration"]
        if calibration is not None:
            kwargs = from_json(calibration["kwargs"])
            if not isinstance(kwargs, Mapping):
                raise ValueError("the kwargs of a calibration must be a mapping")
            calibration = Calibration(**{**calibration, "kwargs": kwargs})
        return cls(data["format"], data["method"], calibration, tuple(data["exclude"]))
