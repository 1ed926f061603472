"""Models of the library transformers: SegFormer, DINOv2, the encoder of SAM, and the image and text models of CLIP."""

from __future__ import annotations

import torch
from torch import nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
    Dinov2Config,
    Dinov2Model,
    SamVisionConfig,
    SamVisionModel,
    SegformerConfig,
    SegformerForSemanticSegmentation,
)

from .sizes import by_size, prepare_module


def clip_vision() -> nn.Module:
    """The image model of CLIP ViT-B/32."""
    torch.manual_seed(0)
    small = CLIPVisionConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, projection_dim=64
    )
    return prepare_module(CLIPVisionModelWithProjection(by_size(CLIPVisionConfig(), small)))


def clip_text() -> nn.Module:
    """The text model of CLIP ViT-B/32."""
    torch.manual_seed(0)
    small = CLIPTextConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        projection_dim=64,
        vocab_size=1000,
        eos_token_id=999,
    )
    return prepare_module(CLIPTextModelWithProjection(by_size(CLIPTextConfig(), small)))


def sam_encoder() -> nn.Module:
    """The image encoder of SAM ViT-B."""
    torch.manual_seed(0)
    small = SamVisionConfig(
        hidden_size=96,
        output_channels=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        mlp_dim=192,
        global_attn_indexes=[1],
    )
    config = by_size(SamVisionConfig(), small)
    config.initializer_range = 0.02  # the default is 1e-10, with which all results are nearly 0
    return prepare_module(SamVisionModel(config))


def segformer() -> nn.Module:
    """SegFormer-B0."""
    torch.manual_seed(0)
    return prepare_module(SegformerForSemanticSegmentation(SegformerConfig(depths=by_size([2, 2, 2, 2], [1, 1, 1, 1]))))


def dinov2() -> nn.Module:
    """DINOv2 ViT-S/14 with position embeddings for 518 × 518 images."""
    torch.manual_seed(0)
    hidden, layers, heads = by_size((384, 12, 6), (96, 2, 3))
    config = Dinov2Config(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, image_size=518, patch_size=14
    )
    return prepare_module(Dinov2Model(config))
