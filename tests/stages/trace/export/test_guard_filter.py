"""A guard (a condition on sizes that torch assumes) is accepted if every declared size fulfils it.

Errors about other guards name the line of user code or the size.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.stages.trace.conftest import make_job, trace_in_process
from trtbuild.core.model.spec import NamedDim
from trtbuild.errors import SourceError

THIS_FILE = "tests/stages/trace/export/test_guard_filter.py"


class GrowingCache(nn.Module):
    """A decoder step with a cache of dynamic length. The slice ends at the smaller of two lengths."""

    def forward(self, x: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
        length = past.shape[1]
        whole = past.repeat(1, 2)
        return whole[:, : min(2 + length, 2 * length)] + x


class Halved(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, : torch.sym_int(0.5 * x.shape[1])] * 2


class WithoutFirst(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[1:] * 2


def output_shape(traced):
    """The shape of the only output, as expressions of the symbols."""
    return traced.interface["outputs"][0]["shape"]


def test_accepts_a_guard_that_holds_at_every_size():
    job = make_job({"x": (1, 1), "past": ((1, 2), (1, 8), (1, 256))})
    assert trace_in_process(GrowingCache().eval(), job)


def test_accepts_a_guard_with_rounding_that_holds_at_every_size():
    assert trace_in_process(Halved().eval(), make_job({"x": ((1, 4), (1, 8), (1, 64))}))


@pytest.mark.parametrize("names", ["a", "ab", "abc"])
def test_chunks_of_concatenated_inputs_have_a_dynamic_size(names):
    """torch.chunk computes the number of chunks from the sizes of all inputs, and torch has a symbol for each input."""

    class Chunks(nn.Module):
        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            count = max(len(inputs), 2)  # a single input is concatenated with itself
            first, *_, last = torch.chunk(torch.cat((inputs * 2)[:count]), count)
            return first - 2 * last

    shape = ((1, 3), (4, 3), (8, 3))
    dims = [NamedDim("batch", tuple((name, 0) for name in names))]
    traced = trace_in_process(Chunks().eval(), make_job(dict.fromkeys(names, shape), dims=dims))
    assert output_shape(traced) == [["sym", 0], 3]


@pytest.mark.parametrize("opt", [2, 3, 8])
def test_accepts_a_derived_size_of_one(opt):
    traced = trace_in_process(WithoutFirst().eval(), make_job({"x": ((2, 3), (opt, 3), (8, 3))}))
    assert output_shape(traced) == [["add", -1, ["sym", 0]], 3]


def test_rejects_a_model_with_a_branch_where_a_derived_size_is_one_and_names_that_size():
    class Special(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rest = x[1:]
            if rest.shape[0] == 1:
                return rest * 3
            return rest * 2

    with pytest.raises(SourceError, match=r"not the model at x\.0 = 2") as caught:
        trace_in_process(Special().eval(), make_job({"x": ((2, 3), (4, 3), (8, 3))}))
    assert "x.0 is at least 3" in (caught.value.hint or "")


@pytest.mark.parametrize("multiple_of", [1, 2])
def test_rejects_a_branch_at_one_size_of_a_large_range(multiple_of):
    class Special(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 3 if x.shape[0] - 5001 == 1 else x * 2

    dims = [NamedDim("length", (("x", 0),), multiple_of)]
    with pytest.raises(SourceError, match=r"not the model at x\.0 = 5002"):
        trace_in_process(Special().eval(), make_job({"x": ((2, 3), (150, 3), (9000, 3))}, dims=dims))


def line_of(text: str) -> int:
    """The number of this file's first line that ends with `text`."""
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.rstrip().endswith(text))


def test_rejects_a_branch_that_fixes_an_axis_and_names_its_line():
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] == 4:  # fixes the axis
                return x * 2
            return x * 3

    with pytest.raises(SourceError, match="fixes it to 4") as caught:
        trace_in_process(Fixed().eval(), make_job({"x": ((1, 3), (4, 3), (8, 3))}))
    assert (caught.value.file, caught.value.line) == (THIS_FILE, line_of("# fixes the axis"))
    assert "the size is declared at trtbuild.yaml:10" in (caught.value.hint or "")


def test_rejects_a_branch_that_splits_the_range_and_names_its_line():
    class Split(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.shape[0] > 3 else x  # splits the range

    with pytest.raises(SourceError, match="needs at least 4") as caught:
        trace_in_process(Split().eval(), make_job({"x": ((1, 3), (6, 3), (8, 3))}))
    assert (caught.value.file, caught.value.line) == (THIS_FILE, line_of("# splits the range"))
