"""A small vision transformer of the transformers library, with random weights."""

import torch
from transformers import ViTConfig, ViTModel


def build(layers: int) -> torch.nn.Module:
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=192,
        num_hidden_layers=layers,
        num_attention_heads=3,
        intermediate_size=768,
        image_size=64,
        patch_size=8,
    )
    return ViTModel(config, add_pooling_layer=False).eval()
