"""Image classifiers of timm."""

from __future__ import annotations

import timm
import torch
from torch import nn

from .sizes import by_size, prepare_module


def vit_base() -> nn.Module:
    """ViT-B/16."""
    torch.manual_seed(0)
    arguments = by_size({}, {"depth": 2, "embed_dim": 192, "num_heads": 3})
    return prepare_module(timm.create_model("vit_base_patch16_224", pretrained=False, **arguments))


def mobilenet_v4() -> nn.Module:
    """MobileNetV4, hybrid medium: convolutions and multi-query attention."""
    torch.manual_seed(0)
    name = by_size("mobilenetv4_hybrid_medium", "mobilenetv4_conv_small_050")
    return prepare_module(timm.create_model(name, pretrained=False))
