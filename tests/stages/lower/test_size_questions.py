"""An operator is not decomposed if its decomposition would be right only for the sizes of the example.

A decomposition may ask questions about sizes, such as whether a size is below 8. torch answers for the example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.fx.experimental.symbolic_shapes import guard_or_false

from trtbuild.stages.lower.run import lower
from trtbuild.stages.program.functional import Program, functional

_aten = torch.ops.aten


class Sinh(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sinh()


@pytest.fixture(scope="module")
def program() -> Program:
    exported = export(Sinh(), (torch.ones(4, 3),), dynamic_shapes=({0: Dim("n", min=2, max=40)},))
    return functional(exported)[0]


def lowered_operators(program: Program, answer: Callable[[Any], Any]) -> list[Any]:
    def decomposition(x: torch.Tensor) -> torch.Tensor:
        return x.exp() if answer(x.shape[0]) else x.cos()

    lowered = lower(program, "float32", {_aten.sinh.default: decomposition})
    return [node.target for node in lowered.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize(
    "answer", [lambda size: size < 8, lambda size: int(size) > 3, lambda size: size % 5 > 1, lambda size: size != 37]
)
def test_an_operator_stays_if_the_example_decides_its_decomposition(
    program: Program, answer: Callable[[Any], Any]
) -> None:
    assert lowered_operators(program, answer) == [_aten.sinh.default]


@pytest.mark.parametrize("answer", [lambda size: size > 1, lambda size: 2 * size <= 80])
def test_an_operator_is_decomposed_if_its_question_has_one_answer_for_all_sizes(
    program: Program, answer: Callable[[Any], Any]
) -> None:
    assert lowered_operators(program, answer) == [_aten.exp.default]


def test_an_operator_is_decomposed_if_torch_gives_the_answer_of_guard_or_false(program: Program) -> None:
    assert lowered_operators(program, lambda size: guard_or_false(size > 8)) == [_aten.cos.default]
    assert lowered_operators(program, lambda size: guard_or_false(size < 8)) == [_aten.sinh.default]


def test_nothing_is_recorded_after_the_step(program: Program) -> None:
    lowered_operators(program, lambda size: size < 8)
    env = program.input_nodes[0].meta["val"].fake_mode.shape_env
    assert "evaluate_sym_node" not in vars(env)
