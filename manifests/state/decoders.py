"""Text decoders of the library transformers, with random weights, so that nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache


class StaticDecoder(nn.Module):
    """A decoder with a cache of a fixed size. A call returns the next token's logits."""

    def __init__(self, decoder: Any, most_tokens: int) -> None:
        super().__init__()
        self.decoder = decoder
        config = decoder.config
        self.cache = StaticCache(config, max_cache_len=most_tokens)
        head_size = config.hidden_size // config.num_attention_heads
        self.cache.early_initialization(1, config.num_key_value_heads, head_size, torch.float32, torch.device("cpu"))
        for number, layer in enumerate(self.cache.layers):
            # the tensors of the cache themselves, because a call writes to them
            self.register_buffer(f"keys_{number}", layer.keys, persistent=False)
            self.register_buffer(f"values_{number}", layer.values, persistent=False)
            self.register_buffer(f"length_{number}", layer.cumulative_length, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.decoder(tokens, past_key_values=self.cache, use_cache=True, logits_to_keep=1).logits[:, -1]


class GrowingDecoder(nn.Module):
    """A decoder whose caller passes the keys and values of all earlier tokens.

    A call returns the next token's logits, and the keys and values of all tokens, including the new ones.
    """

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens: torch.Tensor, past: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cache = DynamicCache([(keys, values) for keys, values in past])
        logits = self.decoder(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        return logits, torch.stack([torch.stack([layer.keys, layer.values]) for layer in cache.layers])


class Prefill(nn.Module):
    """A decoder for the first call, which has no earlier tokens."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cache = DynamicCache()
        logits = self.decoder(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        return logits, torch.stack([torch.stack([layer.keys, layer.values]) for layer in cache.layers])


def decoder(layers: int = 2, hidden: int = 64) -> Any:
    """A Llama. The size of a head is 16, or 64 if `hidden` is at least 256."""
    torch.manual_seed(0)
    heads = hidden // (64 if hidden >= 256 else 16)
    config = LlamaConfig(
        vocab_size=8 * hidden,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=512,
        initializer_range=2.4 / hidden**0.5,  # with the usual 0.02, the decoder would repeat a few tokens
    )
    return LlamaForCausalLM(config).eval()


def static_decoder(**size: int) -> nn.Module:
    return StaticDecoder(decoder(**size), most_tokens=128).eval()


def growing_decoder(**size: int) -> nn.Module:
    return GrowingDecoder(decoder(**size)).eval()


def prefill(**size: int) -> nn.Module:
    return Prefill(decoder(**size)).eval()
