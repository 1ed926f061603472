"""A small convolutional detector. Its two heads, at 1/8 and 1/16 of the image size, compute boxes and class scores."""

import torch
from torch import nn


def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.SiLU())


class Detector(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(block(3, 16, 2), block(16, 32, 2), block(32, 32, 2))
        self.deep = block(32, 64, 2)
        self.lateral = nn.Conv2d(64, 32, 1)
        self.heads = nn.ModuleList(nn.Conv2d(channels, 4 + classes, 1) for channels in (32, 64))

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        fine = self.stem(image)
        coarse = self.deep(fine)
        up = nn.functional.interpolate(self.lateral(coarse), scale_factor=2.0, mode="nearest")
        return {"fine": self.heads[0](fine + up), "coarse": self.heads[1](coarse)}


def build(classes: int) -> nn.Module:
    torch.manual_seed(0)
    return Detector(classes).eval()
