"""Leave out the term that ``beta=0`` multiplies in matrix products such as ``addmm``.

PyTorch does not read `x` in ``baddbmm(x, a, b, beta=0)``. The ONNX translation multiplies `x` by 0, which gives NaN for
infinities and NaN.
"""

from __future__ import annotations

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


def drop_zero_terms(program: Program, request: Request) -> Program:
    return change_calls(program, frozenset(_PRODUCTS), _drop_term)


def _drop_term(node: torch.fx.Node) -> None:
    beta, alpha = node.kwargs.get("beta", 1), node.kwargs.get("alpha", 1)
    if not isinstance(beta, int | float) or beta != 0:
        return
    product = insert_call(node, _PRODUCTS[node.target], *node.args[1:])
    if node.target is _aten.addbmm.default:
        product = insert_call(node, _aten.sum.dim_IntList, product, [0])
    if alpha != 1 or isinstance(alpha, torch.fx.Node):
        product = insert_call(node, _aten.mul.Tensor, product, alpha)
    replace(node, product)
