"""ResNet-50 (He et al. 2015, https://arxiv.org/abs/1512.03385) with random weights: convolutions and batch norms."""

from __future__ import annotations

import torch
from torch import nn

#: The width, the number of blocks and the stride of each stage.
_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))


class Bottleneck(nn.Module):  # type: ignore[misc]
    """1 × 1, 3 × 3 and 1 × 1 convolutions beside a shortcut."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        channels_out = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(channels_in, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, channels_out, 1, bias=False), nn.BatchNorm2d(channels_out)
        self.down = None
        if stride != 1 or channels_in != channels_out:
            self.down = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return torch.relu(y + (x if self.down is None else self.down(x)))


def build() -> nn.Module:
    """Return the model. The statistics of its batch norms are in the range that trained models have."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = 64
    for width, count, stride in _STAGES:
        for number in range(count):
            layers.append(Bottleneck(channels, width, stride if number == 0 else 1))
            channels = 4 * width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.uniform_(module.weight, 0.5, 1.0)
            nn.init.normal_(module.bias, 0, 0.1)
    return model.eval()
