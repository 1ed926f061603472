"""Copies without an effect are removed.

A copy stays if it changes strides, or if an output would otherwise be an input or another output.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Copies(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.dropout(x * 2, 0.5, self.training)
        return y.clone().detach().float().contiguous() + 1


def test_copies_of_the_same_layout_are_dropped(lower_module: Any, calls: Any) -> None:
    _, program = lower_module(Copies(), (torch.randn(3, 4),))
    assert calls(program) == ["mul.Tensor", "add.Tensor"]


class Transposes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.t().contiguous().view(-1) + 1


def test_a_copy_with_other_strides_stays(lower_module: Any, calls: Any) -> None:
    traced, program = lower_module(Transposes(), (torch.randn(3, 4),))
    assert "clone.default" in calls(program)
    assert torch.equal(traced.run(program)[0], traced.eager()[0])


class ReturnsCopies(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return x.clone(), y, y.clone()


def test_a_copy_stays_where_an_output_would_be_an_input_or_another_output(lower_module: Any) -> None:
    _, program = lower_module(ReturnsCopies(), (torch.randn(3, 4),))
    outputs = program.output_nodes
    assert len(set(outputs)) == 3
    assert all(node.op == "call_function" for node in outputs)
