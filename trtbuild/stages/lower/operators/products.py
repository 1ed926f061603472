"""Rewrite matrix products with the factors ``beta`` and ``alpha``, such as ``baddbmm``: ``beta * x + alpha * (a @ b)``.

Rules
1. With ``beta=0``, the term with `x` is left out. PyTorch does not read `x` then. The ONNX translation multiplies `x` by 0,
   which gives NaN for infinities and NaN.
2. If the absolute value of `alpha` is between 0 and 1, both matrices are multiplied by its square root before the product.
   (If `alpha` is negative, `a` is also negated.) PyTorch multiplies by `alpha` before it rounds the product.
   The translation rounds the product first, so scores of attention in float16 could become infinite.
3. Products of integers and of complex numbers are not rewritten, because they stay in PyTorch. For integers, PyTorch casts
   both factors to integers.
"""

from __future__ import annotations

import math

import torch

from trtbuild.stages.lower.operators.calls import change_calls, insert_call, replace
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
#: Operator with the arguments self, a, b, beta and alpha → the operator for the product of a and b.
_PRODUCTS = {
    _aten.addmm.default: _aten.mm.default,
    _aten.baddbmm.default: _aten.bmm.default,
    _aten.addbmm.default: _aten.bmm.default,
    _aten.addmv.default: _aten.mv.default,
}


def write_out_factors(program: Program, request: Request) -> Program:
    return change_calls(program, frozenset((*_PRODUCTS, _aten.addr.default)), _write_out)


def _write_out(node: torch.fx.Node) -> None:
    if not node.meta["val"].dtype.is_floating_point:
        return
    _multiply_matrices(node)
    if node.target is _aten.addr.default:  # its translation does not read a term with the factor 0
        return
    beta, alpha = node.kwargs.get("beta", 1), node.kwargs.get("alpha", 1)
    if not isinstance(beta, int | float) or beta != 0:
        return
    product = insert_call(node, _PRODUCTS[node.target], *node.args[1:])
    if node.target is _aten.addbmm.default:
        product = insert_call(node, _aten.sum.dim_IntList, product, [0])
    if alpha != 1 or isinstance(alpha, torch.fx.Node):
        product = insert_call(node, _aten.mul.Tensor, product, alpha)
    replace(node, product)


def _multiply_matrices(node: torch.fx.Node) -> None:
    """Apply rule 2 to a call."""
    alpha = node.kwargs.get("alpha", 1)
    if not isinstance(alpha, int | float) or not 0 < abs(alpha) < 1:
        return
    root = math.sqrt(abs(alpha))
    x, a, b = node.args
    a = insert_call(node, _aten.mul.Tensor, a, math.copysign(root, alpha))
    node.args = (x, a, insert_call(node, _aten.mul.Tensor, b, root))
    node.kwargs = {name: value for name, value in node.kwargs.items() if name != "alpha"}
