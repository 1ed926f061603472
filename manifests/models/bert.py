"""A small BERT of the transformers library, with random weights."""

import torch
from transformers import BertConfig, BertModel


def build(layers: int) -> torch.nn.Module:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=1000,
        hidden_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=256,
    )
    return BertModel(config, add_pooling_layer=False).eval()
