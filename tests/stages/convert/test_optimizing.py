"""The optimizer produces the same model if it tries each rule only at matching operators."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from onnxscript.rewriter import RewriteRule

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
    monkeypatch.setattr(optimizing, "_try_matching_operators_only", contextlib.nullcontext)
    assert convert(program, 20) == with_filter
    assert 0 < tried_with_filter < tried / 5
