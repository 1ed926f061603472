"""A size stays dynamic in a model that pads it to whole blocks, and later crops the result.

The cropped tensor is contiguous if nothing was padded. So most tests trace the model at two opt sizes: one needs padding,
and the other does not.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.stages.trace.conftest import make_job, trace_in_process
from trtbuild.errors import SourceError


class Cropped(nn.Module):
    """Pads the width to an even size, and crops the result. `after_crop` changes the cropped tensor."""

    def __init__(self, after_crop) -> None:
        super().__init__()
        self.after_crop = after_crop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        width = x.shape[3]
        return self.after_crop(F.pad(x, (0, -width % 2)).cos()[..., :width], width)


class UNet(nn.Module):
    """A U-Net with two levels, for images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        height, width = image.shape[-2:]
        padded = F.pad(image, (0, -width % 2, 0, -height % 2))
        return (self.up(self.down(padded).relu()) + padded)[..., :height, :width]


class Windows(nn.Module):
    """Rearranges an image into windows of 4 x 4 elements and back, as Swin transformers do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, height, width, channels = x.shape
        x = F.pad(x, (0, 0, 0, -width % 4, 0, -height % 4))
        rows, columns = x.shape[1] // 4, x.shape[2] // 4
        x = x.view(batch, rows, 4, columns, 4, channels).permute(0, 1, 3, 2, 4, 5).contiguous()
        x = x.view(-1, 16, channels).softmax(1)
        x = x.view(batch, rows, columns, 4, 4, channels).permute(0, 1, 3, 2, 4, 5).contiguous()
        x = x.view(batch, 4 * rows, 4 * columns, channels)
        return x[:, :height, :width, :].contiguous().view(batch, height * width, channels)


def width_job(opt: int):
    return make_job({"x": ((2, 3, 5, 6), (2, 3, 5, opt), (2, 3, 5, 15))})


@pytest.mark.parametrize("opt", [8, 9])
@pytest.mark.parametrize(
    "after_crop",
    [
        lambda x, width: x,
        lambda x, width: x.contiguous().view(2, -1),
        lambda x, width: x.reshape(2, -1),
        lambda x, width: x.to(memory_format=torch.channels_last).relu(),
        lambda x, width: x if x.is_contiguous() else x.contiguous(),
    ],
    ids=["crop", "view", "reshape", "channels_last", "branch of equal results"],
)
def test_a_padded_and_cropped_width_is_dynamic(after_crop, opt):
    traced = trace_in_process(Cropped(after_crop).eval(), width_job(opt))
    assert "['sym', 0]" in str(traced.interface["outputs"][0]["shape"])


@pytest.mark.parametrize(("height", "width"), [(8, 8), (9, 8)])
def test_two_padded_and_cropped_sizes_are_dynamic(height, width):
    assert trace_in_process(UNet().eval(), make_job({"image": ((1, 3, 5, 5), (1, 3, height, width), (1, 3, 15, 14))}))


def test_windows_of_two_padded_sizes_are_dynamic():
    """The conditions on strides contain both sizes."""
    assert trace_in_process(Windows().eval(), make_job({"x": ((1, 5, 5, 2), (1, 8, 8, 2), (1, 15, 14, 2))}))


@pytest.mark.parametrize("opt", [8, 9])
@pytest.mark.parametrize(
    "after_crop",
    [
        lambda x, width: x.sin() if x.is_contiguous() else x,
        lambda x, width: x.sin() if x.stride(2) == width else x,
        lambda x, width: x.sin() if width % 2 else x,
    ],
    ids=["is_contiguous", "stride", "width"],
)
def test_a_branch_that_depends_on_the_padding_is_rejected(after_crop, opt):
    with pytest.raises(SourceError, match=r"not the model at x\.3|axis x\.3"):
        trace_in_process(Cropped(after_crop).eval(), width_job(opt))
