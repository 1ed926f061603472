"""Text generators of transformers: GPT-2, Llama and Qwen2."""

from __future__ import annotations

import torch
from torch import nn
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from .sizes import by_size, is_published_size, prepare_module


class Prefill(nn.Module):  # type: ignore[misc]
    """The scores of the next token at each position, without a cache."""

    def __init__(self, generator: nn.Module) -> None:
        super().__init__()
        self.generator = generator

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.generator(input_ids, attention_mask=attention_mask, use_cache=False).logits
        return scores


def gpt2() -> nn.Module:
    """GPT-2, 124 million parameters."""
    torch.manual_seed(0)
    small = GPT2Config(n_embd=128, n_layer=2, n_head=4, vocab_size=1000)
    return prepare_module(Prefill(GPT2LMHeadModel(by_size(GPT2Config(), small))))


def _llama(layers: int) -> LlamaConfig:
    """Llama with 12 heads of 64 channels."""
    hidden, feed_forward, words = by_size((768, 3072, 32000), (96, 256, 1000))
    return LlamaConfig(
        hidden_size=hidden,
        intermediate_size=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=12,
        head_dim=64,
        vocab_size=words,
        max_position_embeddings=2048,
    )


def llama_prefill() -> nn.Module:
    """Llama with 160 million parameters in 12 layers: all positions of a text at once."""
    torch.manual_seed(0)
    return prepare_module(Prefill(LlamaForCausalLM(_llama(by_size(12, 2)))))


class DecodeStep(nn.Module):  # type: ignore[misc]
    """One step of a generator: a token and the caches of keys and values → the scores of the next token, and longer caches.

    Each cache is [layer, batch, head, position, channel].
    """

    def __init__(self, generator: nn.Module, layers: int) -> None:
        super().__init__()
        self.generator, self.layers = generator, layers

    def forward(
        self, input_ids: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        cache = DynamicCache()
        for layer in range(self.layers):
            cache.update(keys[layer], values[layer], layer)
        scores = self.generator(input_ids, past_key_values=cache, use_cache=True).logits
        caches = [cache.layers[layer] for layer in range(self.layers)]
        return scores, torch.stack([layer.keys for layer in caches]), torch.stack([layer.values for layer in caches])


def llama_decode() -> nn.Module:
    """Llama with 68 million parameters in two layers: one step with its cache."""
    torch.manual_seed(0)
    return prepare_module(DecodeStep(LlamaForCausalLM(_llama(2)), 2))


def qwen2_prefill() -> nn.Module:
    """Qwen2 with 0.5 billion parameters."""
    torch.manual_seed(0)
    if is_published_size():
        config = Qwen2Config(
            hidden_size=896,
            intermediate_size=4864,
            num_hidden_layers=24,
            num_attention_heads=14,
            num_key_value_heads=2,
            tie_word_embeddings=True,
        )
    else:
        config = Qwen2Config(
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=1000,
        )
    return prepare_module(Prefill(Qwen2ForCausalLM(config)))
