"""A stored program can be read even if its sizes are rounded, or contain symbols that are not the size of an input."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from tests.fuzz.comparing import differences
from tests.fuzz.modules import module_from_text
from tests.fuzz.pipeline import ModuleCase, build
from trtbuild import stored_sizes
from trtbuild.runtime.calls.torch_part import ProgramGraph


@pytest.mark.parametrize(
    "body",
    [
        "(x0[:, x0.shape[1] // 2 :] * 2).cos().sum(1)",
        "(x0 * 2).flatten(0, 1)[x0.shape[0] * x0.shape[1] // 3 :].cos() + 1",
        "(x0[:, max(x0.shape[1] - 4, 1) :] * 2).cos().sum(1)",
    ],
    ids=["half", "product", "last"],
)
def test_a_partition_may_receive_only_the_last_part_of_an_axis(body: str) -> None:
    shape = ((1, 3, 8), (2, 5, 16), 4)
    case = ModuleCase(module_from_text([], body, 1), [("float32", shape)], torch_executed_ops=("aten.cos.default",))
    built = build(case, engines=False)
    assert not differences(case, built).differences
    (part,) = (part for part in built.partitions.partitions if part.kind == "torch")
    ProgramGraph(memoryview(built.store.get_bytes(built.programs[part.graph])), torch.device("cpu"), part.name)


class PadsToFour(torch.nn.Module):
    """A model like audio encoders: its number of frames is a rounded quotient."""

    def forward(self, x):
        padding = math.ceil(x.shape[1] / 4) * 4 - x.shape[1]
        return torch.nn.functional.pad(x, (0, padding))[:, math.floor(x.shape[1] / 3) :] * 2


def test_a_model_may_round_its_sizes_with_floor_and_ceil() -> None:
    case = ModuleCase(PadsToFour().eval(), [("float32", (2, (6, 9, 21)))])
    built = build(case, engines=False)
    assert not differences(case, built).differences
    for part in built.partitions.partitions:
        ProgramGraph(memoryview(built.store.get_bytes(built.programs[part.graph])), torch.device("cpu"), part.name)


def test_the_tried_numbers_begin_at_the_lower_end_of_a_range_or_at_0() -> None:
    assert list(stored_sizes._first_numbers(ValueRanges(2, 4))) == [2, 3, 4]
    assert list(stored_sizes._first_numbers(ValueRanges(-int_oo, int_oo)))[:2] == [0, 1]
