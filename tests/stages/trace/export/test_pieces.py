"""Splits along a dynamic axis become slices if not all pieces are used, or if the size of the pieces is dynamic."""

from __future__ import annotations

import io

import pytest
import torch

from trtbuild.core.model.spec import NamedDim
from trtbuild.stages.program.functional import Program

SHAPES = {"x": ((4, 2), (4, 2), (8, 2))}
DIMS = [NamedDim("rows", (("x", 0),), 4)]


def operators(data: bytes) -> list[str]:
    return [str(node.target) for node in Program.from_bytes(data).graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("pieces", [[0], [1], [0, 1]])
def test_a_program_with_unused_pieces_can_be_loaded_and_equals_eager(traced, job_of, pieces) -> None:
    program = traced(lambda x: [x.split(2)[n] * 2 for n in pieces], job_of(SHAPES, dims=DIMS)).program
    assert operators(program).count("aten.slice.Tensor") == len(pieces)
    assert "aten.split.Tensor" not in operators(program)
    loaded = Program.from_bytes(program)
    for rows in (4, 8):
        x = torch.rand(rows, 2)
        for n, value in zip(pieces, loaded.exported.module()(x), strict=True):
            assert torch.equal(value, x.split(2)[n] * 2)


def test_without_the_slices_torch_alone_cannot_load_the_program(traced, job_of, monkeypatch) -> None:
    monkeypatch.setattr("trtbuild.stages.trace.export.finalizing.slice_used_pieces", lambda graph: None)
    program = traced(lambda x: x.split(2)[0] * 2, job_of(SHAPES, dims=DIMS)).program
    with pytest.raises(RuntimeError, match="deserializing"):
        torch.export.load(io.BytesIO(program))


def test_a_split_of_a_static_axis_is_kept(traced, job_of) -> None:
    static = traced(lambda x: x.split(1, 1)[0] * 2, job_of(SHAPES, dims=DIMS)).program
    assert "aten.split.Tensor" in operators(static)


@pytest.mark.parametrize("count", [2, 3])
def test_pieces_of_a_dynamic_size_equal_eager(traced, job_of, count) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [piece * 2 for piece in torch.cat([x, x[:1]]).chunk(count)]

    program = traced(function, job_of({"x": ((5, 2), (8, 2), (17, 2))})).program
    assert "aten.split.Tensor" not in operators(program)
    loaded = Program.from_bytes(program)
    for rows in (5, 8, 17):
        x = torch.rand(rows, 2)
        for result, expected in zip(loaded.exported.module()(x), function(x), strict=True):
            assert torch.equal(result, expected)
