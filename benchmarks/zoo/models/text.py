"""Text models of transformers: BERT, MiniLM, and the encoder and the decoder of T5."""

from __future__ import annotations

import torch
from torch import nn
from transformers import BertConfig, BertModel, T5Config, T5EncoderModel, T5ForConditionalGeneration

from .sizes import by_size, is_published_size, prepare_module


def bert() -> nn.Module:
    """BERT-base."""
    torch.manual_seed(0)
    small = BertConfig(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, vocab_size=1000
    )
    return prepare_module(BertModel(by_size(BertConfig(), small), add_pooling_layer=False))


class SentenceEmbedding(nn.Module):  # type: ignore[misc]
    """The mean of the token vectors that the mask selects, scaled to norm 1."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        tokens = self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(tokens.dtype)
        mean = (tokens * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(mean, dim=-1)


def minilm() -> nn.Module:
    """all-MiniLM-L6: sentence embeddings."""
    torch.manual_seed(0)
    layers, hidden, words = by_size((6, 384, 30522), (1, 96, 1000))
    config = BertConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=12,
        intermediate_size=4 * hidden,
        vocab_size=words,
    )
    return prepare_module(SentenceEmbedding(BertModel(config, add_pooling_layer=False)))


def _t5_config() -> T5Config:
    """The configuration of T5-small."""
    if is_published_size():
        return T5Config(use_cache=False)
    return T5Config(use_cache=False, num_layers=1, num_decoder_layers=1, d_ff=256, num_heads=4, vocab_size=1000)


def t5_encoder() -> nn.Module:
    """The encoder of T5-small."""
    torch.manual_seed(0)
    return prepare_module(T5EncoderModel(_t5_config()))


class T5Decoder(nn.Module):  # type: ignore[misc]
    """The decoder of T5 and its output layer: the scores of the next token at each position."""

    def __init__(self, model: T5ForConditionalGeneration) -> None:
        super().__init__()
        self.decoder, self.lm_head = model.decoder, model.lm_head

    def forward(self, input_ids: torch.Tensor, states: torch.Tensor, states_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.decoder(
            input_ids=input_ids, encoder_hidden_states=states, encoder_attention_mask=states_mask, use_cache=False
        ).last_hidden_state
        scores: torch.Tensor = self.lm_head(hidden * hidden.shape[-1] ** -0.5)
        return scores


def t5_decoder() -> nn.Module:
    """The decoder of T5-small. The hidden states of the encoder are an input."""
    torch.manual_seed(0)
    return prepare_module(T5Decoder(T5ForConditionalGeneration(_t5_config())))
