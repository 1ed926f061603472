"""A model with a custom operator that averages values in regions of feature maps. Its engine calls a TensorRT plugin.

The operator computes the same as ONNX's RoiAlign with average pooling, half_pixel coordinates and a fixed number of samples
(https://onnx.ai/onnx/operators/onnx__RoiAlign.html). The plugin is TensorRT's ROIAlign_TRT.
"""

from __future__ import annotations

import torch
from torch import nn


def _positions(low: torch.Tensor, high: torch.Tensor, bins: int, samples: int) -> torch.Tensor:
    """Return the coordinates of all samples along one axis: [regions, bins * samples]."""
    steps = (torch.arange(bins * samples, dtype=low.dtype, device=low.device) + 0.5) / (bins * samples)
    return low[:, None] + (high - low)[:, None] * steps


def _weights(positions: torch.Tensor, size: int) -> torch.Tensor:
    """Return the share of each of `size` rows (or columns) in each sample: [regions, samples, size].

    For positions below -1 or above `size`, all shares are 0.
    """
    inside = (positions >= -1) & (positions <= size)
    clamped = positions.clamp(0, size - 1)
    rows = torch.arange(size, dtype=positions.dtype, device=positions.device)
    shares = (1 - (clamped[..., None] - rows).abs()).clamp(min=0)
    return shares * inside[..., None]


@torch.library.custom_op("regions::align", mutates_args=())  # type: ignore[untyped-decorator]
def align(
    maps: torch.Tensor, boxes: torch.Tensor, images: torch.Tensor, height: int, width: int, scale: float, samples: int
) -> torch.Tensor:
    """Return the means of `samples` x `samples` values in `height` x `width` bins of each region.

    `maps` is [images, channels, rows, columns]. `boxes` is [regions, 4], as x1, y1, x2, y2. `images` has the number of each
    region's image. The result is [regions, channels, height, width].
    """
    left, top, right, bottom = (boxes * scale - 0.5).unbind(1)
    rows = _weights(_positions(top, bottom, height, samples), maps.shape[2])
    columns = _weights(_positions(left, right, width, samples), maps.shape[3])
    values = torch.einsum("rys,rcst,rxt->rcyx", rows, maps[images.long()], columns)
    return values.unflatten(3, (width, samples)).unflatten(2, (height, samples)).mean((3, 5))


@align.register_fake  # type: ignore[untyped-decorator]
def _(
    maps: torch.Tensor, boxes: torch.Tensor, images: torch.Tensor, height: int, width: int, scale: float, samples: int
) -> torch.Tensor:
    return maps.new_empty(boxes.shape[0], maps.shape[1], height, width)


class Regions(nn.Module):  # type: ignore[misc]
    """Scores of regions. `corners` has x, y, width - 1 and height - 1 of each region, so that no region is empty."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.head = nn.Linear(16 * 7 * 7, 10)

    def forward(self, pictures: torch.Tensor, corners: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        boxes = torch.cat([corners[:, :2], corners[:, :2] + corners[:, 2:] + 1], 1)
        maps = torch.relu(self.features(pictures))
        regions = torch.ops.regions.align(maps, boxes, images, 7, 7, 0.5, 2)
        return self.head(torch.relu(regions.flatten(1)))


def build() -> nn.Module:
    torch.manual_seed(0)
    return Regions().eval()
