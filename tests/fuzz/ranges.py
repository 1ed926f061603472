"""Random ranges of dynamic axes, and a check that PyTorch can run a module at several sizes in its ranges."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from tests.fuzz.comparing import filled_memory
from tests.fuzz.pipeline import ModuleCase
from trtbuild.core.model.verification import points_of_model
from trtbuild.stages.verify.comparing import deviation
from trtbuild.stages.verify.inputs import random_inputs


def random_range(rng: random.Random, size: int, unit: int = 1) -> tuple[int, int, int]:
    """A random range, often around or near `size`. Its sizes are multiples of `unit`.

    Ranges with edge cases (size 1 or 2, min=opt, opt=max) are more frequent than other ranges.
    """
    n = max(1, size // unit)  # the number of units in `size`
    low, mid, high = rng.choice(
        [
            (1, 2, 2), (1, 1, 2), (1, 2, 3), (1, 1, 3), (2, 2, 3), (2, 3, 3),
            (1, n, n), (1, n, n + 1), (n, n, n + 1), (n, n, n + 4), (1, n, 2 * n), (2, n, n + 3),
            (n - 1, n, n), (n - 1, n, n + 1), (1, 1, n), (1, 3, 8), (3, n, n + 2), (n, n + 1, n + 2),
        ]
    )  # fmt: skip
    low, mid, high = sorted((max(1, low), max(1, mid), max(1, high)))
    if low == high:
        high += 1
    return low * unit, mid * unit, high * unit


class UnusableCase(Exception):
    """A case that is not usable for a comparison. The text begins with the name of the reason."""


def check_usable(case: ModuleCase) -> None:
    """Run the module of a case in eager PyTorch, twice at each point (min, opt, max, random sizes).

    Raises UnusableCase if a range is invalid, or if PyTorch fails. Also raises it if the module writes to an input, returns
    no tensor, or gives different results in the two runs.
    """
    try:
        shapes = case.shapes
    except ValueError as error:
        raise UnusableCase(f"ranges: {error}") from error
    model = case.model
    inputs = [(entry.name, entry.dtype) for entry in model.inputs]
    for point in points_of_model(model, shapes):
        sizes = shapes.input_shapes(point.sizes)
        arguments = random_inputs(inputs, sizes, point, ends=[2] * len(inputs), ranges={})  # integers are 0 or 1
        copies = [value.clone() for value in arguments]
        try:
            with torch.no_grad():
                first = pytree.tree_leaves(case.module(*arguments))
                with filled_memory():
                    second = pytree.tree_leaves(case.module(*arguments))
        except Exception as error:
            raise UnusableCase(f"eager fails: {type(error).__name__}: {error}") from error
        if not _nearly_equal(copies, arguments):
            raise UnusableCase("inputs are written to: such a model is rejected")
        if not any(isinstance(value, torch.Tensor) for value in first):
            raise UnusableCase("no tensor is returned")
        if not _nearly_equal(first, second):
            raise UnusableCase("results differ: random numbers, or uninitialized memory")


def _nearly_equal(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return len(first) == len(second) and all(
        deviation(a, b).error <= 1e-5 if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b
        for a, b in zip(first, second, strict=True)
    )
