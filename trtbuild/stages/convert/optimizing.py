"""Fold constants and simplify an ONNX model with onnxscript's optimizer, which is patched in four ways.

1. Constants are compared exactly. Without the patch, the optimizer's rules compare them with a tolerance (onnxscript 0.7.2:
   relative 1e-5, absolute 1e-8). They would replace ``x + 1e-9`` by ``x``, and a term that prevents a division by 0 would
   be lost.
2. These rules change the results of some models (measured with onnxscript 0.7.2), and are left out:
   * ``relu(clamp(x, -3, -1))`` becomes ``clamp(x, 0, -1)``, and ``clamp(clamp(x, 0, 1), 2, 3)`` becomes ``clamp(x, 2, 1)``.
     If the bounds of ONNX's Clip are in the wrong order, its result is the upper bound.
   * ``bmm(x.reshape(4, 2, 2), y.reshape(4, 2, 2)).reshape(4, 4)`` becomes ``x @ y``: the rule compares only sizes.
   * ``abs(n - 9)`` becomes ``n - 9`` if n is a size. The rule treats the sum of a size and a constant as a size.
   * Min and Max with constants become one Clip. If the constants have more axes than the operand, the result lacks these
     axes. These rules are left out only if the constants may have more axes.
   * A ScatterND to all rows in order becomes its updates, also if it adds them to the rows (``x.index_add(0, rows, y)``).
     This rule is left out only for a ScatterND with a reduction.
3. A rule is tried only at nodes with the operator at the end of its pattern, unless it has its own way of matching
   (`_may_match`). Without the patch, each rule is tried at each node, which takes most of the optimizer's time. The result
   is the same.
4. A rule may give a new constant the name of another one: the bounds of each Clip of ``n0`` are ``n0_min`` and ``n0_max``
   (onnxscript 0.7.2). The optimizer then removes the older constant, although a node reads it. So the new one gets another
   name.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir
from onnxscript import optimizer
from onnxscript.optimizer import _constant_folding
from onnxscript.rewriter import _ir_utils, _matcher, _rewrite_rule
from onnxscript.rewriter.rules.common import (
    _broadcast_to_matmul,
    _fuse_relus_clips,
    _min_max_to_clip,
    _redundant_scatter_nd,
)

#: The modules of onnxscript that compare constants by ``math.isclose``.
_COMPARING_MODULES = (_matcher, _ir_utils)

_WRONG_RULES = (
    _fuse_relus_clips.successive_clip_rule,
    _fuse_relus_clips.successive_relu_clip_rule,
    _broadcast_to_matmul.one_reshape_matmul_reshape_rule,
    _broadcast_to_matmul.two_reshapes_matmul_reshape_rule,
)
_CLIP_RULES = (_min_max_to_clip.min_max_rule, _min_max_to_clip.max_min_rule)
_SCATTER_RULE = _redundant_scatter_nd.no_op_static_scatter_nd_rule


def optimize(model: onnx_ir.Model) -> None:
    """Optimize `model` in place."""
    with _compare_exactly(), _leave_out_rules():
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
def _leave_out_rules() -> Iterator[None]:
    rule_class, evaluators = _rewrite_rule.RewriteRule, _constant_folding.registry.op_evaluators
    original_try, original_abs = rule_class.try_rewrite, evaluators.pop(("", "Abs"), [])

    def try_rewrite(rule: Any, model: Any, graph: Any, node: onnx_ir.Node, **options: Any) -> Any:
        if _is_wrong(rule, node) or not _may_match(rule, node):
            return None
        delta = original_try(rule, model, graph, node, **options)
        if delta is not None:
            _rename_constants(delta.new_initializers, graph)
        return delta

    rule_class.try_rewrite = try_rewrite
    try:
        yield
    finally:
        rule_class.try_rewrite = original_try
        evaluators["", "Abs"] = original_abs


def _is_wrong(rule: Any, node: onnx_ir.Node) -> bool:
    """Whether `rule` may change the result of `node` (rule 2). `_leave_out_rules` removes the rule for Abs, which is not a
    `RewriteRule`."""
    if rule in _CLIP_RULES:
        return _may_add_axes(node)
    if rule is _SCATTER_RULE:
        return bool(node.attributes.get_string("reduction", "none") != "none")
    return rule in _WRONG_RULES


def _rename_constants(constants: Sequence[onnx_ir.Value], graph: Any) -> None:
    """Give each new constant a name that no initializer of `graph` has (rule 4)."""
    names = set(graph.initializers) if isinstance(graph, onnx_ir.Graph) else set()
    for constant in constants:
        name, number = constant.name, 0
        while constant.name in names:
            number += 1
            constant.name = f"{name}_{number}"
        names.add(constant.name)


def _may_add_axes(node: onnx_ir.Node) -> bool:
    """Whether the result of a Min of a Max (or the reverse) may have more axes than the operand of the inner node."""
    inner = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    operand = inner.inputs[0] if inner is not None and inner.inputs else None
    before, after = operand.shape if operand is not None else None, node.outputs[0].shape
    return before is None or after is None or len(before) < len(after)


def _may_match(rule: Any, node: onnx_ir.Node) -> bool:
    """Whether `rule` is tried at `node`: whether the node has the operator at the end of the rule's pattern (rule 3)."""
    if type(rule._matcher) is not _matcher.SimplePatternMatcher:
        return True  # other matchers may begin at another operator than that of the pattern's first output
    return bool(rule._target_pattern.output_nodes[0].op.matches(node.op_type))
