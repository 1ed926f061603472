"""Every partition of every example computes what the eager model does, at min, opt and max of each profile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.examples.conftest import Example, example_names, relative_difference

#: The largest difference by precision, relative to the largest value.
TOLERANCE = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}

Find = Callable[[str], Example]


@pytest.mark.parametrize("name", example_names(computed=True))
def test_every_partition_and_the_whole_model_equal_the_eager_model(name: str, example: Find) -> None:
    found = example(name)
    tolerance = TOLERANCE[found.model.precision]
    for point, sizes in found.points:
        inputs = found.inputs(sizes)
        eager = found.run_eager(inputs)
        values = found.values(inputs, found.in_torch)
        for part in found.partitions.partitions:
            if part.kind != "tensorrt":
                continue
            results = found.in_onnx(part, [values[source] for source, _ in part.inputs])
            for number, ours in enumerate(results):
                assert relative_difference(ours, values[f"{part.name}:{number}"]) <= tolerance, (
                    f"{part.name} at {point}"
                )
        for ours, theirs in zip(found.stitched(inputs), eager, strict=True):
            assert relative_difference(ours, theirs) <= tolerance, f"the whole at {point}"
        for source, theirs in zip(found.partitions.outputs, eager, strict=True):
            assert relative_difference(values[source], theirs) <= tolerance, f"the whole in PyTorch at {point}"


def test_a_row_whose_mask_is_all_zero(example: Find) -> None:
    """BERT in float16: all rows of a batch, also a row that is masked entirely, have no NaN and equal the eager result."""
    found = example("bert")
    inputs = found.inputs([4, 32])
    inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
    inputs["attention_mask"][1] = 0
    inputs["attention_mask"][2, 5:] = 0
    ((ours,), (theirs,)) = found.stitched(inputs), found.run_eager(inputs)
    for row in range(4):
        assert relative_difference(ours[row], theirs[row]) <= TOLERANCE["float16"]


def test_sizes_between_min_and_max(example: Find) -> None:
    """No profile names these sizes. Some are odd."""
    for name, sizes in (("any_image", (3, 65, 131)), ("bert", (3, 77)), ("attention", (7,)), ("detector", (96, 608))):
        found = example(name)
        inputs = found.inputs(sizes)
        for ours, theirs in zip(found.stitched(inputs), found.run_eager(inputs), strict=True):
            assert relative_difference(ours, theirs) <= TOLERANCE[found.model.precision]
