"""Each TensorRT partition and each whole example has the right results at min, opt and max of each profile.

onnxruntime computes the TensorRT partitions. Each partition is compared with its PyTorch program, if it has one, and each
model with the original model. Examples that neither PyTorch nor onnxruntime can compute are left out.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.examples.conftest import Example, example_names, relative_difference

#: Precision → the largest allowed difference, relative to the largest expected value.
TOLERANCE = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}

Find = Callable[[str], Example]


@pytest.mark.parametrize("name", example_names(only_computable=True))
def test_every_partition_and_the_whole_model_equal_the_eager_model(name: str, find_example: Find) -> None:
    example = find_example(name)
    tolerance = TOLERANCE[example.model.precision]
    for point, sizes in example.points:
        inputs = example.inputs(sizes)
        eager = example.run_eager(inputs)
        values = example.values(inputs, example.in_torch)
        for part in example.partitions.partitions:
            if part.kind != "tensorrt":
                continue
            results = example.in_onnx(part, [values[source] for source, _ in part.inputs])
            for number, computed in enumerate(results):
                assert relative_difference(computed, values[f"{part.name}:{number}"]) <= tolerance, (
                    f"{part.name} at {point}"
                )
        for computed, expected in zip(example.run_partitions(inputs), eager, strict=True):
            assert relative_difference(computed, expected) <= tolerance, f"the whole model at {point}"
        for source, expected in zip(example.partitions.outputs, eager, strict=True):
            assert relative_difference(values[source], expected) <= tolerance, f"the whole model in PyTorch at {point}"


def test_a_row_whose_mask_is_all_zero_is_right_and_has_no_nan(find_example: Find) -> None:
    """BERT in float16: each row of a batch is right and has no NaN, also a row that is masked entirely."""
    example = find_example("bert")
    inputs = example.inputs([4, 32])
    inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
    inputs["attention_mask"][1] = 0
    inputs["attention_mask"][2, 5:] = 0
    ((computed,), (expected,)) = example.run_partitions(inputs), example.run_eager(inputs)
    for row in range(4):
        assert relative_difference(computed[row], expected[row]) <= TOLERANCE["float16"]


def test_sizes_between_min_and_max_give_the_results_of_the_eager_model(find_example: Find) -> None:
    """No profile names these sizes. Some are odd numbers."""
    for name, sizes in (("any_image", (3, 65, 131)), ("bert", (3, 77)), ("attention", (7,)), ("detector", (96, 608))):
        example = find_example(name)
        inputs = example.inputs(sizes)
        for computed, expected in zip(example.run_partitions(inputs), example.run_eager(inputs), strict=True):
            assert relative_difference(computed, expected) <= TOLERANCE[example.model.precision]
