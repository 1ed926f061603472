"""The reference programs of the examples give the results of the original models at min, opt, max and random sizes.

PyTorch or onnxruntime runs the reference program of a package. The program needs no source of the model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.utils._pytree as pytree

import trtbuild
from tests.conftest import BuiltExamples
from tests.examples.conftest import Example, example_names, relative_difference
from tests.examples.test_numbers import TOLERANCE
from trtbuild.core.model.shapes import profile_sizes
from trtbuild.errors import CallRefused, NoFittingTarget
from trtbuild.runtime.calls.output_tree import Fields

Find = Callable[[str], Example]

#: The model that calls TensorRT's API. It has no program that PyTorch could run.
NO_REFERENCE = "network_detector"
WITH_REFERENCE = [name for name in example_names() if name != NO_REFERENCE]


def points(example: Example) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name of each point, and the sizes of its dynamic dims: min, opt, max and two random points per profile."""
    for point, sizes in example.points:
        yield str(point), sizes
    rng = random.Random(example.name)
    for profile in example.model.profiles:
        low, high = (profile_sizes(example.shapes, profile, which) for which in ("min", "max"))
        for number in range(2):
            units = [symbol.multiple_of for symbol in example.shapes.symbols]
            sizes = (
                rng.randint(smallest // unit, largest // unit) * unit
                for smallest, largest, unit in zip(low, high, units, strict=True)
            )
            yield f"{profile.name}-random-{number}", tuple(sizes)


@pytest.mark.parametrize("name", WITH_REFERENCE)
def test_a_loaded_package_equals_the_eager_model(name: str, find_example: Find, built_examples: BuiltExamples) -> None:
    example = find_example(name)
    loaded = trtbuild.load(built_examples.project / "dist" / name, device="cpu")
    module = loaded.module()
    assert loaded.is_reference and [entry.name for entry in loaded.inputs] == [i.name for i in example.model.inputs]
    for point, sizes in points(example):
        inputs = example.inputs(sizes)
        positional = [inputs[entry.name] for entry in example.model.inputs if not entry.keyword]
        named = {entry.name: inputs[entry.name] for entry in example.model.inputs if entry.keyword}
        computed, expected = module(*positional, **named), example.run_eager(inputs)
        flat = list(computed) if isinstance(computed, Fields) else pytree.tree_leaves(computed)
        for value, expected_value in zip(flat, expected, strict=True):
            assert relative_difference(value, expected_value) <= TOLERANCE[example.model.precision], point


@pytest.mark.parametrize("name", WITH_REFERENCE)
def test_rejects_sizes_beyond_every_profile(name: str, find_example: Find, built_examples: BuiltExamples) -> None:
    example = find_example(name)
    module = trtbuild.load(built_examples.project / "dist" / name, device="cpu").module()
    for number, symbol in enumerate(example.shapes.symbols):
        sizes = [other.max for other in example.shapes.symbols]
        sizes[number] += symbol.multiple_of
        shapes = example.shapes.input_shapes(sizes)
        inputs = {
            entry.name: torch.empty(shape, dtype=getattr(torch, entry.dtype), device="cpu")
            for entry, shape in zip(example.model.inputs, shapes, strict=True)
        }
        with pytest.raises(CallRefused) as raised:
            module(**inputs)
        text = str(raised.value)
        assert f"dim {symbol.name!r}" in text and f"is {sizes[number]}, and allowed is" in text


def test_rejects_a_package_without_a_reference_program(built_examples: BuiltExamples) -> None:
    with pytest.raises(NoFittingTarget, match="has no reference program"):
        trtbuild.load(built_examples.project / "dist" / NO_REFERENCE, device="cpu")
