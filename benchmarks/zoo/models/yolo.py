"""YOLO11 of ultralytics."""

from __future__ import annotations

import torch
from torch import nn
from ultralytics.nn.tasks import DetectionModel, yaml_model_load

from .sizes import by_size, prepare_module


class Detections(nn.Module):  # type: ignore[misc]
    """The boxes and scores of all anchors, before non-maximum suppression."""

    def __init__(self, detector: DetectionModel) -> None:
        super().__init__()
        self.detector = detector
        head = detector.model[-1]
        head.export, head.format, head.dynamic = True, "onnx", True

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        detections: torch.Tensor = self.detector(image)
        return detections


def yolo11n() -> nn.Module:
    """YOLO11n."""
    torch.manual_seed(0)
    layout = yaml_model_load("yolo11n.yaml")
    # the factors of depth and width, and the largest number of channels
    layout["scales"]["n"] = by_size([0.5, 0.25, 1024], [0.5, 0.125, 512])
    return prepare_module(Detections(DetectionModel(layout, verbose=False)))
