"""Just-in-time compilation by torch.compile with `mark_dynamic`, and one model that is compiled in three ways."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import Dim, export

from tests.guide.conftest import assert_equals_eager
from trtbuild import Input


def test_torch_compile_accepts_all_sizes_that_mark_dynamic_allows(conv_net: Any, options: dict[str, Any]) -> None:
    model = torch.compile(conv_net, backend="trtbuild", options={**options, "pass_through_build_failures": True})
    x = torch.randn(4, 3, 16, 16)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=8)
    assert_equals_eager(model, conv_net, x)
    for batch in (2, 8):
        assert_equals_eager(model, conv_net, torch.randn(batch, 3, 16, 16))


class ClassToken(torch.nn.Module):
    """Puts a learned token, expanded to the batch size, before the patches of each image."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token = torch.nn.Parameter(torch.randn(1, 1, 8))
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.token.expand(x.shape[0], -1, -1)
        return torch.relu(self.linear(torch.cat([tokens, x], 1)))[:, 0]


def test_three_ways_to_compile_one_model_give_its_eager_results(compile_module: Any, options: dict[str, Any]) -> None:
    eager, x = ClassToken().eval(), torch.randn(4, 3, 8)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=8)
    models = [
        torch.compile(eager, backend="trtbuild", options={**options, "pass_through_build_failures": True}),
        compile_module(eager, [Input(min_shape=(2, 3, 8), opt_shape=(4, 3, 8), max_shape=(8, 3, 8))]),
        compile_module(export(eager, (torch.randn(4, 3, 8),), dynamic_shapes={"x": {0: Dim("batch", min=2, max=8)}})),
    ]
    assert_equals_eager(models[0], eager, x)
    for model in models:
        for batch in (2, 5, 8):
            assert_equals_eager(model, eager, torch.randn(batch, 3, 8))
