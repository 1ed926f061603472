"""The result of a calibration: the quantizers of each layer, and the weights that the calibration has changed.

The result is stored as a safetensors file (https://github.com/huggingface/safetensors, "Format"), with the layouts of the
quantizers in the file's metadata. Equal results have equal bytes, so a calibration that finds the same scales changes no
later step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from trtbuild.core.values.safetensors import metadata_of, read_tensors, to_bytes
from trtbuild.stages.raw_tensors import raw_tensor, tensor_of
from trtbuild.stages.trace.quantization.quantizer import Quantizer, QuantizerLayout

if TYPE_CHECKING:
    from typing import Self  # since Python 3.11

SCHEMA = "trtbuild.quantizers/1"

#: The tensor of a layer that a quantizer rounds.
Role = Literal["input", "weight"]


@dataclass(frozen=True)
class StoredQuantizers:
    """The quantizers and the changed weights."""

    #: Module path of a layer → role (``input`` or ``weight``) → quantizer.
    layers: Mapping[str, Mapping[str, Quantizer]] = field(default_factory=dict)
    #: Name of a changed weight → its value.
    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The bytes of the file: tensors in the order of their names."""
        tensors = {f"weights/{name}": value for name, value in self.weights.items()}
        layouts: dict[str, dict[str, Any]] = {}
        for path, quantizers in sorted(self.layers.items()):
            layouts[path] = {role: asdict(quantizer.layout) for role, quantizer in sorted(quantizers.items())}
            for role, quantizer in quantizers.items():
                tensors |= {f"layers/{path}/{role}/{name}": value for name, value in quantizer.tensors().items()}
        document = {"schema": SCHEMA, "layers": layouts}
        metadata = {"trtbuild": json.dumps(document, sort_keys=True)}
        return to_bytes((raw_tensor(name, value) for name, value in sorted(tensors.items())), metadata)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The inverse of `to_bytes`. Raises ValueError, KeyError, TypeError or AttributeError for other bytes."""
        document = json.loads(metadata_of(data)["trtbuild"])
        if document["schema"] != SCHEMA:
            raise ValueError(f"not a {SCHEMA} document")
        tensors = {entry.name: tensor_of(entry.dtype, entry.shape, raw) for entry, raw in read_tensors(data)}
        try:
            layers = {
                path: {role: _quantizer(f"layers/{path}/{role}/", layout, tensors) for role, layout in roles.items()}
                for path, roles in document["layers"].items()
            }
        except AttributeError as error:  # not a mapping
            raise ValueError(f"its quantizers are not understood: {error}") from error
        weights = {
            name.removeprefix("weights/"): value for name, value in tensors.items() if name.startswith("weights/")
        }
        return cls(layers, weights)


def _quantizer(prefix: str, layout: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Quantizer:
    arguments = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    return Quantizer(QuantizerLayout(**layout), **arguments)
