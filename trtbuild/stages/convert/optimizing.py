"""Fold constants and simplify an ONNX model with onnxscript's optimizer, which is patched in two ways.

1. Constants are compared exactly. The optimizer's rules compare them with a tolerance (onnxscript 0.7.2: relative 1e-5,
   absolute 1e-8). So they replace ``x + 1e-9`` by ``x``, and a term that prevents a division by 0 is lost.
2. A rule is tried only at nodes with the operator at the end of its pattern. The optimizer tries each rule at each node,
   which takes most of its time. The result is the same.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import onnx_ir
from onnxscript import optimizer
from onnxscript.rewriter import _ir_utils, _matcher, _rewrite_rule

#: The modules of onnxscript that compare constants by ``math.isclose``.
_COMPARING_MODULES = (_matcher, _ir_utils)


def optimize(model: onnx_ir.Model) -> None:
    """Optimize `model` in place."""
    with _compare_exactly(), _try_matching_operators_only():
        optimizer.optimize_ir(model)


@contextlib.contextmanager
def _compare_exactly() -> Iterator[None]:
    originals = [module.math for module in _COMPARING_MODULES]
    for module in _COMPARING_MODULES:
        module.math = types.SimpleNamespace(isclose=lambda a, b, **_: a == b)
    try:
        yield
    finally:
        for module, original in zip(_COMPARING_MODULES, originals, strict=True):
            module.math = original


@contextlib.contextmanager
def _try_matching_operators_only() -> Iterator[None]:
    rule_class = _rewrite_rule.RewriteRule
    original = rule_class.try_rewrite

    def try_rewrite(rule: Any, model: Any, graph: Any, node: onnx_ir.Node, **options: Any) -> Any:
        # a matcher of this class begins with the operator of the pattern's first output
        is_simple = type(rule._matcher) is _matcher.SimplePatternMatcher
        if is_simple and not rule._target_pattern.output_nodes[0].op.matches(node.op_type):
            return None
        return original(rule, model, graph, node, **options)

    rule_class.try_rewrite = try_rewrite
    try:
        yield
    finally:
        rule_class.try_rewrite = original
