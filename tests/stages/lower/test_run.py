"""Lowering keeps the functional form, leaves the given program unchanged, and gives the same text in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from trtbuild.stages.lower.passes import PASSES
from trtbuild.stages.lower.run import lower
from trtbuild.stages.program.functional import Program, functional
from trtbuild.stages.program.text import program_text


class Unused(nn.Module):
    """A model with an unused buffer, an unused input and an unused computation. One of its outputs is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("idle", torch.zeros(3))
        self.lin = nn.Linear(4, 4)

    def forward(self, unread: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.lin(x)
        (y + 1).relu()
        return y * torch.tensor([2.0]), x, y


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_the_functional_form_is_kept(lower_module: Any, precision: str) -> None:
    traced, program = lower_module(Unused(), (torch.ones(2), torch.randn(3, 4)), precision)
    before = traced.program
    assert program.weights == before.weights == 3
    assert [n.name for n in program.placeholders] == [n.name for n in before.placeholders]
    assert list(program.constants) == list(before.constants)
    assert not any("relu" in str(n.target) for n in program.graph.nodes)
    assert all(set(n.meta) <= {"val", "nn_module_stack"} for n in program.graph.nodes)
    for result, expected in zip(traced.run(program), traced.eager(), strict=True):
        assert result.dtype is expected.dtype
        assert torch.allclose(result, expected, atol=1e-2)


def test_lowering_does_not_change_its_input(traced: Any, decompositions: Any) -> None:
    program = traced("mlp").program
    text = program_text(program)
    lower(program, "float16", decompositions)
    assert program_text(program) == text


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_program_that_was_stored_lowers_to_the_same_text(traced: Any, decompositions: Any, precision: Any) -> None:
    program = traced("manual_attention").program
    stored = Program.from_bytes(program.to_bytes())
    assert program_text(lower(stored, precision, decompositions)) == program_text(
        lower(program, precision, decompositions)
    )


def test_a_lowered_program_can_be_stored(lowered: Any) -> None:
    program = lowered("post_norm", "bfloat16")
    assert program_text(Program.from_bytes(program.to_bytes())) == program_text(program)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.lin = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.lin(self.norm(x)).softmax(-1)
        return torch.cat([x + y, (y * y).mean(-1, keepdim=True) * torch.finfo().max], -1)


def block_text() -> str:
    exported = export(Block().eval(), (torch.randn(2, 8),), dynamic_shapes=({0: Dim("b", min=1, max=8)},))
    return program_text(lower(functional(exported)[0], "float16", {}))


def test_a_program_has_the_same_text_in_every_process() -> None:
    code = f"import runpy; print(runpy.run_path({__file__!r})['block_text'](), end='')"
    env = {**os.environ, "PYTHONHASHSEED": "77"}
    completed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=env, stdout=subprocess.PIPE, check=True
    )
    assert completed.stdout.decode() == block_text()
    assert "float16" in block_text()


def test_every_pass_has_a_unique_name_and_a_reason() -> None:
    assert len({step.name for step in PASSES}) == len(PASSES)
    assert all(step.why for step in PASSES)
