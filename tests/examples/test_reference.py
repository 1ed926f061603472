"""Every example, loaded from its package without its source, equals the eager model at min, opt, max and random sizes."""

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
from trtbuild.core.model.shapes import symbol_values
from trtbuild.errors import CallRefused, NoFittingTarget
from trtbuild.runtime.calls.output_tree import Fields

Find = Callable[[str], Example]

#: The model whose source fills a TensorRT network. It has no program that PyTorch could run.
NO_REFERENCE = "network_detector"
WITH_REFERENCE = [name for name in example_names() if name != NO_REFERENCE]


def points(found: Example) -> Iterator[tuple[str, tuple[int, ...]]]:
    for point, sizes in found.points:
        yield str(point), sizes
    choose = random.Random(found.name)
    for profile in found.model.profiles:
        low, high = (symbol_values(found.shapes, profile, which) for which in ("min", "max"))
        for number in range(2):
            units = [symbol.multiple_of for symbol in found.shapes.symbols]
            sizes = (
                choose.randint(smallest // unit, largest // unit) * unit
                for smallest, largest, unit in zip(low, high, units, strict=True)
            )
            yield f"{profile.name}-random-{number}", tuple(sizes)


@pytest.mark.parametrize("name", WITH_REFERENCE)
def test_a_loaded_package_equals_the_eager_model(name: str, example: Find, built_examples: BuiltExamples) -> None:
    found = example(name)
    loaded = trtbuild.load(built_examples.project / "dist" / name, device="cpu")
    module = loaded.module()
    assert loaded.is_reference and [entry.name for entry in loaded.inputs] == [i.name for i in found.model.inputs]
    for point, sizes in points(found):
        inputs = found.inputs(sizes)
        positional = [inputs[entry.name] for entry in found.model.inputs if not entry.keyword]
        named = {entry.name: inputs[entry.name] for entry in found.model.inputs if entry.keyword}
        ours, theirs = module(*positional, **named), found.run_eager(inputs)
        flat = list(ours) if isinstance(ours, Fields) else pytree.tree_leaves(ours)
        for our, their in zip(flat, theirs, strict=True):
            assert relative_difference(our, their) <= TOLERANCE[found.model.precision], point


@pytest.mark.parametrize("name", WITH_REFERENCE)
def test_rejects_sizes_beyond_every_profile(name: str, example: Find, built_examples: BuiltExamples) -> None:
    found = example(name)
    module = trtbuild.load(built_examples.project / "dist" / name, device="cpu").module()
    for number, symbol in enumerate(found.shapes.symbols):
        sizes = [each.max for each in found.shapes.symbols]
        sizes[number] += symbol.multiple_of
        shapes = found.shapes.input_shapes(sizes)
        inputs = {
            entry.name: torch.empty(shape, dtype=getattr(torch, entry.dtype), device="cpu")
            for entry, shape in zip(found.model.inputs, shapes, strict=True)
        }
        with pytest.raises(CallRefused) as raised:
            module(**inputs)
        text = str(raised.value)
        assert f"dim {symbol.name!r}" in text and f"is {sizes[number]}, and allowed is" in text


def test_rejects_a_package_without_a_reference_program(built_examples: BuiltExamples) -> None:
    with pytest.raises(NoFittingTarget, match="has no reference program"):
        trtbuild.load(built_examples.project / "dist" / NO_REFERENCE, device="cpu")
