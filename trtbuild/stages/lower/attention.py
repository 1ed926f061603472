"""Attention with a mask, written out, so that rows that are masked entirely are what eager makes of them.

Rules
1. Without a mask, or with ``is_causal`` (where no row is masked entirely), attention stays whole.
2. Eager gives 0 for a row of which every key is masked, by ``False`` or by -inf (``torch._safe_softmax``). The
   exporter's translation gives the average of the values, or NaN. Here such a row is set to 0 at the end, which leaves
   MatMul, mask, Softmax, MatMul together for the compiler to fuse.
3. A mask of finite numbers (``torch.finfo.min``) is added as it is: eager gives the softmax of the sums, and the average
   where all sums are equal. Written out, precision keeps the sum and the softmax in float32 and both products in half.
4. Both operands get the square root of the scale, as in torch's own formula: half overflows later.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from trtbuild.stages.lower.modules import set_stack, stack_of
from trtbuild.stages.lower.propagate import propagate, refresh
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
_LOWEST = torch.finfo(torch.float32).min


def write_out_masked_attention(program: Program, request: Request) -> Program:
    """`program` with every masked ``scaled_dot_product_attention`` of its outer graph written out."""
    graph = program.graph
    changed: set[torch.fx.Node] = set()
    for node in list(graph.nodes):
        refresh(node, changed)
        if node.op == "call_function" and node.target is _aten.scaled_dot_product_attention.default:
            arguments = _arguments(node)
            if _is_covered(**arguments):
                with graph.inserting_before(node):
                    written = _write_out(node, **arguments)
                node.replace_all_uses_with(written)
                graph.erase_node(node)
                changed.add(written)  # it has other strides
    for spec, output in zip(program.exported.graph_signature.output_specs, program.output_nodes, strict=True):
        spec.arg.name = output.name
    program.exported.graph_module.recompile()
    return program


def _arguments(node: torch.fx.Node) -> dict[str, Any]:
    schema = _aten.scaled_dot_product_attention.default._schema.arguments
    given = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    given.update(zip((argument.name for argument in schema), node.args, strict=False))
    given.update(node.kwargs)
    return given


def _is_covered(query: torch.fx.Node, attn_mask: Any, dropout_p: float, is_causal: bool, **_: Any) -> bool:
    value = query.meta["val"]
    is_plain = value.dtype is torch.float32 and isinstance(value.shape[-1], int)
    return attn_mask is not None and not is_causal and dropout_p == 0.0 and is_plain


def _write_out(
    node: torch.fx.Node,
    query: torch.fx.Node,
    key: torch.fx.Node,
    value: torch.fx.Node,
    attn_mask: torch.fx.Node,
    scale: Any,
    enable_gqa: bool,
    **_: Any,
) -> torch.fx.Node:
    stack = stack_of(node)

    def call(target: Callable[..., Any], *args: Any) -> torch.fx.Node:
        made = node.graph.call_function(target, args)
        set_stack(made, stack)
        propagate(made)
        return made

    width = query.meta["val"].shape[-1]
    root = math.sqrt(scale if scale is not None else 1.0 / math.sqrt(width))
    if enable_gqa:
        groups = query.meta["val"].shape[-3] // key.meta["val"].shape[-3]
        if groups != 1:
            key = call(_aten.repeat_interleave.self_int, key, groups, -3)
            value = call(_aten.repeat_interleave.self_int, value, groups, -3)
    query = call(_aten.mul.Tensor, query, root)
    transposed = call(_aten.mul.Tensor, call(_aten.transpose.int, key, -2, -1), root)
    scores = call(_aten.matmul.default, query, transposed)
    if attn_mask.meta["val"].dtype is torch.bool:
        scores = call(_aten.masked_fill.Scalar, scores, call(_aten.logical_not.default, attn_mask), _LOWEST)
        alive = call(_aten.any.dim, attn_mask, -1, True)
    else:
        # -inf becomes the lowest finite number: the same weights, and no NaN in a row of nothing else
        finite = call(_aten.clamp.default, attn_mask, _LOWEST)
        scores = call(_aten.add.Tensor, scores, finite)
        alive = call(_aten.ne.Scalar, call(_aten.amax.default, attn_mask, [-1], True), -math.inf)
    weights = call(_aten.softmax.int, scores, -1)
    result = call(_aten.matmul.default, weights, value)
    # the zero is a scalar: a tensor of it would be one more value with a dtype
    return call(_aten.masked_fill.Scalar, result, call(_aten.logical_not.default, alive), 0.0)
