"""The optimizer does not change results, and tries its rules only at the operators that can match."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from onnxscript.rewriter import RewriteRule
from torch.nn.functional import relu

from tests.stages.convert.conftest import Case, Module, export_and_lower
from trtbuild.stages.convert import optimizing
from trtbuild.stages.convert.conversion import convert


@pytest.mark.parametrize("name", ["norms", "encoder", "attention", "interpolate", "casts", "indexing", "sizes"])
def test_rules_that_are_not_tried_would_not_match(
    name: str, lowered_case: Any, converted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = 0
    original = RewriteRule.try_rewrite

    def try_rewrite(*arguments: Any, **options: Any) -> Any:
        nonlocal tried
        tried += 1
        return original(*arguments, **options)

    monkeypatch.setattr(RewriteRule, "try_rewrite", try_rewrite)
    program = lowered_case(name).program
    with_filter = convert(program, 20)
    tried_with_filter, tried = tried, 0
    monkeypatch.setattr(optimizing, "_may_match", lambda rule, node: True)
    assert convert(program, 20) == with_filter
    assert 0 < tried_with_filter < tried / 5


SQUARES = ((4, 4), "float32"), ((4, 4), "float32")


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda m, x: relu(x.clamp(-3, -1)), SQUARES[:1]),
        (lambda m, x: x.clamp(0, 1).clamp(2, 3), SQUARES[:1]),
        (lambda m, x, y: torch.bmm(x.reshape(4, 2, 2), y.reshape(4, 2, 2)).reshape(4, 4), SQUARES),
        (
            lambda m, x, y: torch.matmul(x.reshape(4, 2, 3, 5), y).reshape(3, 2, 4, 7),
            (((3, 2, 4, 5), "float32"), ((2, 5, 7), "float32")),
        ),
        (lambda m, x: x + (torch.arange(-9, -8) + x.shape[0]).abs(), ((("b", 4), "float32"),)),
        (
            lambda m, x: (x.maximum(torch.zeros(1, 1)).minimum(torch.ones(1, 1)).unsqueeze(1) * m.a).sum(),
            (((4,), "float32"),),
        ),
        (lambda m, x, y: x.index_add(0, torch.arange(4), y), SQUARES),
        (lambda m, x: x.clamp(-2, 0) + x.clamp(0, 1) * x.clamp(-1, 2), SQUARES[:1]),
    ],
    ids=["relu", "clamps", "blocks", "batches", "abs", "axes", "rows", "bounds"],
)
def test_no_rule_changes_the_results(function: Callable[..., Any], inputs: Any, onnxruntime_run: Any) -> None:
    model = export_and_lower(Case(lambda: Module(function, a=torch.arange(16.0).reshape(4, 4)), inputs))
    converted = convert(model.program, 20)
    tensors = model.tensors("opt")
    (result,) = onnxruntime_run(converted.model, model.weights(), tensors)
    torch.testing.assert_close(torch.from_numpy(result), *model.eager(tensors))
