"""Lowering removes assertions and the operators that only assertions use. The ranges of dynamic sizes stay."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.export import Dim

from trtbuild.stages.lower.checks import ASSERTIONS


class Asserts(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] * 2 < 100)
        torch._assert_async((x.sum() < 1e9).all())
        return x.to(torch.float32) + 1


def test_assertions_and_their_operators_are_dropped(lower_module: Any, calls: Any) -> None:
    traced, program = lower_module(Asserts(), (torch.randn(3, 2),), "float32", ({0: Dim("b", min=2, max=9)},))
    assert any(node.target in ASSERTIONS for node in traced.program.graph.nodes)
    assert calls(program) == ["add.Tensor"]
    assert [(int(r.lower), int(r.upper)) for r in program.exported.range_constraints.values()] == [(2, 9)]


def test_every_assertion_has_a_reason() -> None:
    assert all(ASSERTIONS.values())
