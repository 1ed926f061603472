"""Input values for the quantized models: seeded, and with the statistics of images and texts.

A model is calibrated with the samples of `images` or `texts`. With another `seed`, these functions yield the inputs with
which its errors are measured.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

#: The number of tokens in the vocabulary of `bert.py`, and the length of a padded text.
_VOCABULARY, _LENGTH = 2048, 128


def images(count: int, batch: int, seed: int = 0, size: int = 224) -> Iterator[tuple[torch.Tensor]]:
    """Yield `count` samples of shape (batch, 3, size, size), float32.

    As in photographs, higher frequencies have smaller amplitudes, and the colors are correlated. Images differ in
    brightness and contrast. Over all images, values have about the mean 0 and the deviation 1, as normalized images do.
    """
    random = torch.Generator().manual_seed(seed)
    vertical, horizontal = torch.fft.fftfreq(size)[:, None], torch.fft.rfftfreq(size)[None]
    frequencies = (vertical.square() + horizontal.square()).sqrt().clamp_min(1 / size)
    for _ in range(count):
        noise = torch.fft.rfft2(torch.randn(batch, 4, size, size, generator=random)) / frequencies
        planes = torch.fft.irfft2(noise, s=(size, size))
        planes = (planes - planes.mean((2, 3), keepdim=True)) / planes.std((2, 3), keepdim=True)
        colors = 0.9 * planes[:, :1] + 0.45 * planes[:, 1:]
        contrast = 0.5 + torch.rand(batch, 1, 1, 1, generator=random)
        brightness = 0.5 * torch.randn(batch, 1, 1, 1, generator=random)
        yield ((contrast * colors + brightness).contiguous(),)


def texts(count: int, batch: int, seed: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield `count` samples: token ids and a mask, int32 of shape (batch, 128). The mask is 0 after the end of a text.

    Tokens with larger ids are rarer (Zipf's law), and texts have different lengths.
    """
    random = torch.Generator().manual_seed(seed)
    frequencies = 1 / torch.arange(1, _VOCABULARY + 1, dtype=torch.float64)
    for _ in range(count):
        ids = torch.multinomial(frequencies, batch * _LENGTH, replacement=True, generator=random)
        lengths = torch.randint(_LENGTH // 4, _LENGTH + 1, (batch, 1), generator=random)
        mask = torch.arange(_LENGTH)[None] < lengths
        yield (ids.reshape(batch, _LENGTH) * mask).to(torch.int32), mask.to(torch.int32)
