"""Write attention (``scaled_dot_product_attention``) out as MatMul, mask, Softmax, MatMul, where the exporter's
translation differs from eager PyTorch.

Rules
1. Attention without a mask is written out in two cases only: rule 4, and a negative scale, because the translation
   computes the square root of the scale. ``is_causal`` does not count as a mask, because it leaves a key in each row.
2. A mask can hide every key of a row, by ``False`` or by -inf. Eager then returns 0 (``torch._safe_softmax``), and the
   translation returns the average of the values, or NaN. This pass sets such a row to 0. It does so after the second
   MatMul, so that the compiler can fuse the four operators.
3. A mask of finite numbers (``torch.finfo.min``) is added unchanged, as in eager.
4. In float16 or bfloat16 modules, attention with float32 inputs is written out even without a mask, because the translation
   would compute the softmax in half. Then the pass `precision` keeps the sum with the mask and the softmax in float32,
   and both products in half. Attention in a nested graph is an exception, because nested graphs stay in float32.
5. Query and key are both multiplied by the square root of the scale, as in torch's own formula. So float16 overflows
   less often. For a negative scale, the square root is that of its absolute value, and the query is negated.
6. If the user's tensors are float16 or bfloat16, the scores are cast to float32, and the result of the softmax is cast
   back, as in torch's own kernels. In half, a mask of finite numbers could make a whole row -inf.
7. Attention is never written out with dropout, with both a mask and ``is_causal``, or with inputs that are not
   floating-point. It is not written out either if the scale or the number of heads in a group depends on a dynamic size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from trtbuild.stages.half_types import HALF_TYPES
from trtbuild.stages.lower.modules import path_of, set_stack, stack_of
from trtbuild.stages.lower.propagate import propagate, refresh
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
_LOWEST = torch.finfo(torch.float32).min


@dataclass(frozen=True)
class _Attention:
    """The arguments of ``scaled_dot_product_attention``."""

    query: torch.fx.Node
    key: torch.fx.Node
    value: torch.fx.Node
    attn_mask: torch.fx.Node | None
    dropout_p: float
    is_causal: bool
    scale: float | None
    enable_gqa: bool

    @property
    def has_negative_scale(self) -> bool:
        return isinstance(self.scale, int | float) and self.scale < 0


def write_out_attention(program: Program, request: Request) -> Program:
    def becomes_half(node: torch.fx.Node) -> bool:
        return node.args[0].meta["val"].dtype is torch.float32 and request.precisions.of(path_of(node)) != "float32"

    for module in program.exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            _write_out_in_graph(module.graph, becomes_half if module.graph is program.graph else lambda node: False)
            module.recompile()
    program.rename_outputs()
    return program


def _write_out_in_graph(graph: torch.fx.Graph, becomes_half: Callable[[torch.fx.Node], bool]) -> None:
    """Write attention out in one graph. `becomes_half` returns whether rule 4 applies to a node."""
    changed: set[torch.fx.Node] = set()
    for node in list(graph.nodes):
        refresh(node, changed)
        if node.op == "call_function" and node.target is _aten.scaled_dot_product_attention.default:
            attention = _read_arguments(node)
            is_wrong_in_onnx = attention.attn_mask is not None or attention.has_negative_scale
            if _can_write_out(attention) and (is_wrong_in_onnx or becomes_half(node)):
                with graph.inserting_before(node):
                    written = _Writer(node).write(attention)
                node.replace_all_uses_with(written)
                graph.erase_node(node)
                changed.add(written)  # its strides differ


def _read_arguments(node: torch.fx.Node) -> _Attention:
    schema = _aten.scaled_dot_product_attention.default._schema.arguments
    arguments: dict[str, Any] = {a.name: a.default_value for a in schema if a.has_default_value()}
    arguments.update(zip((argument.name for argument in schema), node.args, strict=False))
    arguments.update(node.kwargs)
    return _Attention(**arguments)


def _can_write_out(attention: _Attention) -> bool:
    query, key = attention.query.meta["val"], attention.key.meta["val"]
    scale_is_known = isinstance(query.shape[-1], int) or isinstance(attention.scale, float)
    heads = (query.shape[-3:-2], key.shape[-3:-2]) if attention.enable_gqa else ((), ())
    groups_are_known = all(isinstance(size, int) for sizes in heads for size in sizes)
    is_supported = attention.dropout_p == 0.0 and not (attention.is_causal and attention.attn_mask is not None)
    return query.dtype.is_floating_point and scale_is_known and groups_are_known and is_supported


class _Writer:
    """Writes the calls that replace `node`, in the module of `node`."""

    def __init__(self, node: torch.fx.Node) -> None:
        self._graph = node.graph
        self._stack = stack_of(node)

    def write(self, attention: _Attention) -> torch.fx.Node:
        key, value = self._key_and_value(attention)
        width = attention.query.meta["val"].shape[-1]
        root = math.sqrt(abs(attention.scale) if attention.scale is not None else 1.0 / math.sqrt(width))
        query = self._call(_aten.mul.Tensor, attention.query, -root if attention.has_negative_scale else root)
        transposed = self._call(_aten.mul.Tensor, self._call(_aten.transpose.int, key, -2, -1), root)
        dtype = attention.query.meta["val"].dtype
        wide_dtype = torch.float32 if dtype in HALF_TYPES else dtype
        scores = self._cast(self._call(_aten.matmul.default, query, transposed), wide_dtype)
        masked_rows = None
        if attention.is_causal:
            scores = self._set_lowest(scores, self._call(_aten.logical_not.default, self._causal_mask(attention)))
        elif attention.attn_mask is not None:
            scores, masked_rows = self._apply_mask(scores, attention.attn_mask)
        weights = self._cast(self._call(_aten.softmax.int, scores, -1), dtype)
        result = self._call(_aten.matmul.default, weights, value)
        return result if masked_rows is None else self._call(_aten.masked_fill.Scalar, result, masked_rows, 0.0)

    def _apply_mask(self, scores: torch.fx.Node, mask: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node]:
        """Return the masked scores, and a mask of the rows in which every key is hidden."""
        if mask.meta["val"].dtype is torch.bool:
            masked_rows = self._call(_aten.logical_not.default, self._call(_aten.any.dim, mask, -1, True))
            return self._set_lowest(scores, self._call(_aten.logical_not.default, mask)), masked_rows
        mask = self._cast(mask, scores.meta["val"].dtype)
        # with the lowest finite number instead of -inf, softmax gives the same weights, but no NaN in a fully masked row
        sums = self._call(_aten.add.Tensor, scores, self._call(_aten.clamp.default, mask, _LOWEST))
        return sums, self._call(_aten.eq.Scalar, self._call(_aten.amax.default, mask, [-1], True), -math.inf)

    def _set_lowest(self, scores: torch.fx.Node, masked: torch.fx.Node) -> torch.fx.Node:
        return self._call(_aten.masked_fill.Scalar, scores, masked, _LOWEST)

    def _causal_mask(self, attention: _Attention) -> torch.fx.Node:
        rows, columns = (
            self._call(_aten.arange.default, self._size(tensor, -2)) for tensor in (attention.query, attention.key)
        )
        return self._call(_aten.ge.Tensor, self._call(_aten.unsqueeze.default, rows, 1), columns)

    def _size(self, tensor: torch.fx.Node, axis: int) -> Any:
        size = tensor.meta["val"].shape[axis]
        return size if isinstance(size, int) else self._call(_aten.sym_size.int, tensor, axis)

    def _key_and_value(self, attention: _Attention) -> tuple[torch.fx.Node, torch.fx.Node]:
        """Key and value, repeated for each head of the query."""
        key, value = attention.key, attention.value
        groups = attention.query.meta["val"].shape[-3] // key.meta["val"].shape[-3] if attention.enable_gqa else 1
        if groups == 1:
            return key, value
        repeat = _aten.repeat_interleave.self_int
        return self._call(repeat, key, groups, -3), self._call(repeat, value, groups, -3)

    def _cast(self, tensor: torch.fx.Node, dtype: torch.dtype) -> torch.fx.Node:
        is_cast_needed = tensor.meta["val"].dtype is not dtype
        return self._call(_aten._to_copy.default, tensor, dtype=dtype) if is_cast_needed else tensor

    def _call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.fx.Node:
        call = self._graph.call_function(target, args, kwargs)
        set_stack(call, self._stack)
        propagate(call)
        return call
