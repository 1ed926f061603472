"""`largest_sizes` returns a number for each input: the largest size that any of its axes can have."""

from __future__ import annotations

import torch
from torch.export import Dim

from tests.stages.program.test_text import Call, program_of
from trtbuild.stages.program.symbols import largest_sizes


def test_the_largest_size_of_an_input_follows_from_its_range() -> None:
    dynamic = {"x": {0: Dim("a", min=2, max=8)}, "y": {0: 2 * Dim("b", min=2, max=50)}}
    module = Call(lambda x, y: (x * 2, y.sum()))
    program = program_of(module, torch.ones(4, 6), torch.ones(6, 3), dynamic=dynamic)
    assert largest_sizes(program) == [8, 100]


def test_a_size_without_a_bound_can_be_the_largest_int32() -> None:
    dynamic = {"x": {0: Dim("a")}, "y": None}
    program = program_of(Call(lambda x, y: (x * 2, y.sum())), torch.ones(4, 6), torch.tensor(1.0), dynamic=dynamic)
    assert largest_sizes(program) == [2**31 - 1, 0]
