"""Image classifiers of torchvision."""

from __future__ import annotations

import torch
from torch import nn
from torchvision.models import convnext, efficientnet, mobilenetv3, resnet, swin_transformer

from .sizes import by_size, is_published_size, prepare_module


def resnet50() -> nn.Module:
    """ResNet-50."""
    torch.manual_seed(0)
    return prepare_module(resnet.ResNet(resnet.Bottleneck, by_size([3, 4, 6, 3], [1, 1, 1, 1])))


def mobilenet_v3() -> nn.Module:
    """MobileNetV3-Large."""
    torch.manual_seed(0)
    build = by_size(mobilenetv3.mobilenet_v3_large, mobilenetv3.mobilenet_v3_small)
    return prepare_module(build(weights=None))


def efficientnet_v2() -> nn.Module:
    """EfficientNetV2-S."""
    torch.manual_seed(0)
    if is_published_size():
        return prepare_module(efficientnet.efficientnet_v2_s(weights=None))
    stages = [
        efficientnet.FusedMBConvConfig(1, 3, 1, 24, 24, 1),
        efficientnet.FusedMBConvConfig(4, 3, 2, 24, 48, 1),
        efficientnet.FusedMBConvConfig(4, 3, 2, 48, 64, 1),
        efficientnet.MBConvConfig(4, 3, 2, 64, 128, 1),
    ]
    return prepare_module(efficientnet.EfficientNet(stages, dropout=0.2, last_channel=256))


def convnext_tiny() -> nn.Module:
    """ConvNeXt-Tiny."""
    torch.manual_seed(0)
    blocks = by_size((3, 3, 9, 3), (1, 1, 1, 1))
    widths = ((96, 192), (192, 384), (384, 768), (768, None))
    stages = [convnext.CNBlockConfig(*width, count) for width, count in zip(widths, blocks, strict=True)]
    return prepare_module(convnext.ConvNeXt(stages))


def swin_tiny() -> nn.Module:
    """Swin-T."""
    torch.manual_seed(0)
    return prepare_module(
        swin_transformer.SwinTransformer(
            patch_size=[4, 4],
            embed_dim=by_size(96, 32),
            depths=by_size([2, 2, 6, 2], [2, 2]),
            num_heads=by_size([3, 6, 12, 24], [2, 4]),
            window_size=[7, 7],
        )
    )
