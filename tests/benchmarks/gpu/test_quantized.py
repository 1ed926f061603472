"""The measurement of quantized models: its inputs, and the errors that it computes."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu.models import bert, samples
from benchmarks.gpu.subjects.quantized import FAMILIES, errors_of


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_follow_from_the_seed_alone(family: str) -> None:
    def draw(seed: int) -> list[torch.Tensor]:
        return [value for sample in FAMILIES[family](2, 3, seed=seed) for value in sample]

    first = draw(0)
    assert all(torch.equal(one, other) for one, other in zip(first, draw(0), strict=True))
    assert not torch.equal(first[0], draw(1)[0])
    assert {len(value) for value in first} == {3}


def test_images_have_the_statistics_of_normalized_photographs() -> None:
    (images,) = next(samples.images(1, 16, size=64))
    assert abs(images.mean()) < 0.3 and 0.7 < images.std() < 1.6
    neighbours = torch.corrcoef(torch.stack([images[..., 1:].flatten(), images[..., :-1].flatten()]))[0, 1]
    assert neighbours > 0.6  # the correlation of independent values is 0


def test_texts_are_tokens_and_masks_that_bert_takes() -> None:
    ids, mask = next(samples.texts(1, 4))
    assert ids.dtype == mask.dtype == torch.int32
    assert ids.min() >= 0 and ids.max() < bert.VOCABULARY_SIZE and ids.shape[1] == bert.MAX_LENGTH
    model = bert.build(layers=1, hidden=64)
    with torch.inference_mode():
        whole = model(ids, mask)
        changed = torch.where(mask.bool(), ids, 7)  # other values of masked tokens
        assert torch.allclose(whole[mask.bool()], model(changed, mask)[mask.bool()], atol=1e-5)


def test_errors_are_relative_to_the_expected_values() -> None:
    expected = torch.tensor([3.0, -4.0], dtype=torch.float64)
    assert errors_of(expected, expected) == (0, 0)
    assert errors_of(torch.tensor([3.0, -4.5], dtype=torch.float64), expected) == (0.125, 0.1)
