"""Parts of image generators of diffusers: a UNet, a diffusion transformer and the decoder of an autoencoder."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKL, DiTTransformer2DModel, UNet2DConditionModel
from torch import nn

from .sizes import by_size, prepare_module


class Denoiser(nn.Module):  # type: ignore[misc]
    """One step of a UNet: the predicted noise as a tensor."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, sample: torch.Tensor, timestep: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        noise: torch.Tensor = self.network(sample, timestep, encoder_hidden_states=states, return_dict=False)[0]
        return noise


def unet() -> nn.Module:
    """The UNet of tiny-sd (a smaller Stable Diffusion) with 323 million parameters."""
    torch.manual_seed(0)
    widths = by_size((320, 640, 1280), (32, 64))
    network = UNet2DConditionModel(
        sample_size=64,
        block_out_channels=widths,
        layers_per_block=1,
        cross_attention_dim=768,
        down_block_types=("CrossAttnDownBlock2D",) * (len(widths) - 1) + ("DownBlock2D",),
        up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * (len(widths) - 1),
        mid_block_type=by_size(None, "UNetMidBlock2DCrossAttn"),
        attention_head_dim=8,
        norm_num_groups=by_size(32, 8),
    )
    return prepare_module(Denoiser(network))


class ClassDenoiser(nn.Module):  # type: ignore[misc]
    """One step of a class-conditional diffusion transformer: the predicted noise as a tensor."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, sample: torch.Tensor, timestep: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        noise: torch.Tensor = self.network(sample, timestep=timestep, class_labels=classes, return_dict=False)[0]
        return noise


def dit() -> nn.Module:
    """DiT-B/2."""
    torch.manual_seed(0)
    heads, layers, head_channels = by_size((12, 12, 64), (4, 2, 24))
    network = DiTTransformer2DModel(
        num_attention_heads=heads, attention_head_dim=head_channels, num_layers=layers, out_channels=8, sample_size=32
    )
    return prepare_module(ClassDenoiser(network))


class Decoder(nn.Module):  # type: ignore[misc]
    """The decoder of an autoencoder: latents to an image."""

    def __init__(self, autoencoder: AutoencoderKL) -> None:
        super().__init__()
        self.post_quant_conv, self.decoder = autoencoder.post_quant_conv, autoencoder.decoder

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        image: torch.Tensor = self.decoder(self.post_quant_conv(latents))
        return image


def vae_decoder() -> nn.Module:
    """The decoder of Stable Diffusion's autoencoder."""
    torch.manual_seed(0)
    widths = by_size((128, 256, 512, 512), (32, 64))
    autoencoder = AutoencoderKL(
        block_out_channels=widths,
        layers_per_block=by_size(2, 1),
        latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * len(widths),
        up_block_types=("UpDecoderBlock2D",) * len(widths),
        norm_num_groups=by_size(32, 8),
    )
    return prepare_module(Decoder(autoencoder))
