"""`StoredQuantizers.from_bytes` reads stored quantizers, and raises ValueError if a list is in place of a mapping."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from trtbuild.core.values.safetensors import to_bytes
from trtbuild.stages.raw_tensors import raw_tensor
from trtbuild.stages.trace.quantization.stored import SCHEMA, StoredQuantizers

LAYOUT = {"type": "int8", "axis": None, "smallest": -127, "block": None}


def stored_bytes(layers: Any, scale: torch.Tensor) -> bytes:
    metadata = {"trtbuild": json.dumps({"schema": SCHEMA, "layers": layers})}
    return to_bytes([raw_tensor("layers/body/input/scale", scale)], metadata)


def test_reads_a_quantizer() -> None:
    quantizers = StoredQuantizers.from_bytes(stored_bytes({"body": {"input": LAYOUT}}, torch.tensor(0.5)))
    scale = quantizers.layers["body"]["input"].scale
    assert scale is not None and scale.item() == 0.5


@pytest.mark.parametrize("layers", [["body"], {"body": [LAYOUT]}])
def test_rejects_quantizers_of_another_form(layers: Any) -> None:
    with pytest.raises(ValueError, match="its quantizers are not understood"):
        StoredQuantizers.from_bytes(stored_bytes(layers, torch.tensor(0.5)))
