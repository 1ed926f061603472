"""Operators from outside PyTorch. One runs on GPUs only, and one is written in C++."""

from pathlib import Path

import torch

LIBRARY = Path(__file__).with_name("libnegated.so")


@torch.library.custom_op("boxes::halves", mutates_args=())
def halves(x: torch.Tensor, rows: int, factor: float) -> torch.Tensor:
    """The first `rows` rows of each image, with the channels in reverse order, multiplied by `factor`."""
    return x[:, :, :rows].flip(1) * factor


@halves.register_fake
def _(x, rows, factor):
    return x.new_empty(x.shape[0], x.shape[1], rows, x.shape[3])


@torch.library.custom_op("boxes::positive", mutates_args=())
def positive(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows that begin with a positive number, and their indices."""
    rows = (x[:, 0] > 0).nonzero().reshape(-1)
    return x[rows], rows


@positive.register_fake
def _(x):
    count = torch.library.get_ctx().new_dynamic_size()
    return x.new_empty(count, x.shape[1]), x.new_empty(count, dtype=torch.int64)


@torch.library.custom_op("boxes::nms", mutates_args=())
def nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """The indices of the kept boxes, by falling score. The IoU of two kept boxes is at most `iou_threshold`.

    The arguments are those of ``torchvision::nms``.
    """
    low, high = torch.maximum(boxes[:, None, :2], boxes[:, :2]), torch.minimum(boxes[:, None, 2:], boxes[:, 2:])
    shared, areas = (high - low).clamp(min=0).prod(2), (boxes[:, 2:] - boxes[:, :2]).prod(1)
    overlaps = shared / (areas[:, None] + areas - shared) > iou_threshold
    kept: list[int] = []
    for index in scores.argsort(descending=True, stable=True).tolist():
        if not overlaps[index, kept].any():
            kept.append(index)
    return torch.tensor(kept, dtype=torch.int64, device=boxes.device)


@nms.register_fake
def _(boxes, scores, iou_threshold):
    return boxes.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)


@torch.library.custom_op("boxes::roi_align", mutates_args=())
def roi_align(
    input: torch.Tensor,
    rois: torch.Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> torch.Tensor:
    """The features of each region: [regions, channels, pooled_height, pooled_width].

    `rois` is [regions, 5]: the number of the image, x1, y1, x2, y2. The operator has the schema of
    ``torchvision::roi_align``, but supports only aligned regions of the first image. Each value is the mean of
    `sampling_ratio` × `sampling_ratio` bilinear samples.
    """
    height, width = input.shape[2:]
    left, top, right, bottom = (rois[:, 1:] * spatial_scale - 0.5).unbind(1)

    def samples(low, high, bins, size):
        steps = (torch.arange(bins * sampling_ratio, device=input.device) + 0.5) / (bins * sampling_ratio)
        return (low[:, None] + (high - low)[:, None] * steps) * 2 / (size - 1) - 1

    y, x = samples(top, bottom, pooled_height, height), samples(left, right, pooled_width, width)
    grid = torch.stack([x[:, None, :].expand(-1, y.shape[1], -1), y[:, :, None].expand(-1, -1, x.shape[1])], 3)
    images = input[:1].expand(len(rois), -1, -1, -1)
    values = torch.nn.functional.grid_sample(images, grid, padding_mode="border", align_corners=True)
    return torch.nn.functional.avg_pool2d(values, sampling_ratio)


@roi_align.register_fake
def _(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned):
    return input.new_empty(rois.shape[0], input.shape[1], pooled_height, pooled_width)


@torch.library.custom_op("boxes::on_gpu", mutates_args=(), device_types="cuda")
def on_gpu(x: torch.Tensor) -> torch.Tensor:
    """Twice `x`, by a Triton kernel."""
    import kernels

    return kernels.twice(x)


on_gpu.register_fake(torch.empty_like)

if LIBRARY.exists():
    torch.ops.load_library(LIBRARY)
    torch.library.register_fake("boxes::negated", torch.empty_like)
