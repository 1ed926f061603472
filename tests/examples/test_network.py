"""The detector that calls TensorRT's API computes the same as the PyTorch detector. PyTorch runs the recorded calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.examples.conftest import relative_difference
from tests.imports import import_from
from trtbuild.core.partition import network_document
from trtbuild.toolchain.networks.recording import NetworkInput, RecordedNetwork, record_network

MANIFESTS = Path(__file__).parents[2] / "manifests"


class NetworkInPyTorch:
    """Computes a recorded network (calls of TensorRT's API) in PyTorch."""

    def __init__(self, recorded: RecordedNetwork, *inputs: torch.Tensor) -> None:
        document = network_document.parse(recorded.document)
        self._weights = [torch.from_numpy(array) for array in recorded.weights]
        self._inputs = inputs
        self._calls = [call for call in document["calls"] if call.get("makes")]
        self._attributes: list[dict[str, Any]] = [
            {entry["set"]: entry["value"] for entry in document["calls"] if "set" in entry and entry["on"] == number}
            for number in range(len(self._calls))
        ]
        self._known: dict[int, torch.Tensor] = {}
        self.outputs = [self._value(reference) for reference in document["outputs"]]

    def _value(self, reference: Any) -> torch.Tensor:
        """The tensor that the document names: an input, or the output of a call."""
        if "input" in reference:
            return self._inputs[reference["input"]]
        number = reference["output"][0]
        if number not in self._known:
            self._known[number] = self._compute(self._calls[number], self._attributes[number])
        return self._known[number]

    def _compute(self, call: dict[str, Any], attributes: dict[str, Any]) -> torch.Tensor:
        name, args = call["call"], call["args"]
        x = self._value(args[0])
        if name == "add_convolution_nd":
            kernel, bias = (self._weights[reference["weights"]] for reference in args[3:])
            return F.conv2d(x, kernel, bias, attributes.get("stride_nd", 1), attributes.get("padding_nd", 0))
        if name == "add_activation":
            assert args[1] == {"enum": ["ActivationType", "SIGMOID"]}
            return x.sigmoid()
        if name == "add_elementwise":
            operation = args[2]["enum"][1]
            assert operation in ("SUM", "PROD")
            return x + self._value(args[1]) if operation == "SUM" else x * self._value(args[1])
        assert name == "add_resize"
        assert attributes == {"resize_mode": {"enum": ["InterpolationMode", "NEAREST"]}, "scales": [1, 1, 2, 2]}
        return F.interpolate(x, scale_factor=2.0, mode="nearest")


@pytest.mark.parametrize(("height", "width"), [(64, 64), (96, 320)])
def test_the_recorded_network_equals_the_detector_of_pytorch(height: int, width: int) -> None:
    module = import_from(MANIFESTS, "models.network_detector")
    declared = [NetworkInput("image", "float32", (1, 3, "d0", "d1"))]
    with torch.no_grad():
        recorded = record_network(
            lambda network, trt: module.define(network, trt, classes=8), declared, lambda *_: None
        )
        image = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(0))
        eager = module.build(8)(image)
        network = NetworkInPyTorch(recorded, image)
    assert [name for name, _, _ in recorded.outputs] == list(eager)
    for computed, expected in zip(network.outputs, eager.values(), strict=True):
        assert relative_difference(computed, expected) <= 1e-5
