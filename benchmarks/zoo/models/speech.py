"""Speech models of transformers: Whisper and wav2vec 2.0."""

from __future__ import annotations

import torch
from torch import nn
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC, WhisperConfig, WhisperForConditionalGeneration

from .sizes import by_size, prepare_module


def _whisper() -> WhisperForConditionalGeneration:
    """Whisper-tiny."""
    torch.manual_seed(0)
    layers, words = by_size((4, 51865), (1, 1000))
    config = WhisperConfig(
        encoder_layers=layers,
        decoder_layers=layers,
        d_model=384,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_ffn_dim=1536,
        vocab_size=words,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=False,
    )
    return WhisperForConditionalGeneration(config)


def whisper_encoder() -> nn.Module:
    """The encoder of Whisper-tiny, for 30 seconds of sound."""
    return prepare_module(_whisper().model.encoder)


class WhisperDecoder(nn.Module):  # type: ignore[misc]
    """The decoder and the output layer of Whisper. Returns the scores of the next token at each position."""

    def __init__(self, model: WhisperForConditionalGeneration) -> None:
        super().__init__()
        self.decoder, self.proj_out = model.model.decoder, model.proj_out

    def forward(self, input_ids: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        hidden = self.decoder(input_ids=input_ids, encoder_hidden_states=states, use_cache=False).last_hidden_state
        scores: torch.Tensor = self.proj_out(hidden)
        return scores


def whisper_decoder() -> nn.Module:
    """The decoder of Whisper-tiny. The hidden states of the encoder are an input."""
    return prepare_module(WhisperDecoder(_whisper()))


def wav2vec2() -> nn.Module:
    """wav2vec 2.0 base with letters as outputs."""
    torch.manual_seed(0)
    small = Wav2Vec2Config(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        conv_dim=(64,) * 7,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
    )
    return prepare_module(Wav2Vec2ForCTC(by_size(Wav2Vec2Config(), small)))
