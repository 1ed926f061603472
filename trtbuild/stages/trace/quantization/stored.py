"""The result of a calibration: the quantizers of each layer, and the weights that the method has changed.

Its bytes are a safetensors file (https://github.com/huggingface/safetensors, "Format"), whose metadata has the layouts.
Equal results have equal bytes, so a calibration that finds the same scales changes no later step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import torch

from trtbuild.core.values.element_types import ELEMENT_TYPES
from trtbuild.core.values.safetensors import LENGTH_BYTES, header_length, read_tensors
from trtbuild.stages.trace.quantization.quantizer import Quantizer, QuantizerLayout

SCHEMA = "trtbuild.quantizers/1"
_METADATA = "__metadata__"

#: The tensor of a layer that a quantizer rounds.
Role = Literal["input", "weight"]


@dataclass(frozen=True)
class StoredQuantizers:
    """`layers` maps module paths to the quantizers of a layer. `weights` are the changed weights by name. `unused` are the
    layers that stay in float because the calibration never called them."""

    layers: Mapping[str, Mapping[str, Quantizer]] = field(default_factory=dict)
    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    unused: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """The bytes of the file: tensors in the order of their names."""
        tensors = {f"weights/{name}": value for name, value in self.weights.items()}
        layouts: dict[str, dict[str, Any]] = {}
        for path, quantizers in sorted(self.layers.items()):
            layouts[path] = {role: quantizer.layout.to_json() for role, quantizer in sorted(quantizers.items())}
            for role, quantizer in quantizers.items():
                tensors |= {f"layers/{path}/{role}/{name}": value for name, value in quantizer.tensors().items()}
        document = {"schema": SCHEMA, "layers": layouts, "unused": sorted(self.unused)}
        header: dict[str, Any] = {_METADATA: {"trtbuild": json.dumps(document, sort_keys=True)}}
        pieces: list[bytes] = []
        end = 0
        for name, value in sorted(tensors.items()):
            data = _bytes_of(value)
            dtype = ELEMENT_TYPES[str(value.dtype).removeprefix("torch.")].safetensors
            header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": [end, end + len(data)]}
            pieces.append(data)
            end += len(data)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        return b"".join([len(text).to_bytes(LENGTH_BYTES, "little"), text, *pieces])

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The inverse of `to_bytes`. Raises ValueError, KeyError or TypeError for other bytes."""
        header = json.loads(data[LENGTH_BYTES : LENGTH_BYTES + header_length(data, len(data))])
        document = json.loads(header[_METADATA]["trtbuild"])
        if document["schema"] != SCHEMA:
            raise ValueError(f"not a {SCHEMA} document")
        tensors = {
            entry.name: torch.frombuffer(bytearray(raw), dtype=getattr(torch, entry.dtype)).reshape(entry.shape)
            if raw
            else torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
            for entry, raw in read_tensors(data)
        }
        layers = {
            path: {role: _quantizer(f"layers/{path}/{role}/", layout, tensors) for role, layout in roles.items()}
            for path, roles in document["layers"].items()
        }
        weights = {
            name.removeprefix("weights/"): value for name, value in tensors.items() if name.startswith("weights/")
        }
        return cls(layers, weights, tuple(document["unused"]))


def _quantizer(prefix: str, layout: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Quantizer:
    own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    return Quantizer(QuantizerLayout.from_json(layout), **own)


def _bytes_of(value: torch.Tensor) -> bytes:
    value = value.detach().to("cpu").contiguous()
    return value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
