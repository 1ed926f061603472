"""The case of a seed: a single operator for even seeds, and several operators for odd seeds."""

from __future__ import annotations

from tests.fuzz.compositions import composition_case
from tests.fuzz.operators import operator_case
from tests.fuzz.pipeline import ModuleCase


def case_of(seed: int) -> ModuleCase:
    """The case of a seed, the same in every process. Raises UnusableCase if there is no usable case."""
    return composition_case(seed // 2) if seed % 2 else operator_case(seed // 2)
