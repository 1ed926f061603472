"""Write out the bias of a transposed convolution whose `output_padding` is larger than its `padding`.

The last elements of such a result lie outside the products, so they are equal to the bias. TensorRT's parser makes a
smaller convolution and appends zeros to its result. If the bias is the result of another operator, such as a cast to half
precision, the parser adds it before it appends the zeros.
"""

from __future__ import annotations

import torch

from trtbuild.stages.lower.operators.calls import change_calls, insert_call, replace
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten


def write_out_bias(program: Program, request: Request) -> Program:
    return change_calls(program, frozenset((_aten.convolution.default,)), _write)


def _write(node: torch.fx.Node) -> None:
    source, weight, bias = node.args[:3]
    padding, is_transposed, output_padding = node.args[4], node.args[6], node.args[7]
    axes = weight.meta["val"].dim() - 2
    padding, output_padding = (list(values) * (axes if len(values) == 1 else 1) for values in (padding, output_padding))
    if bias is None or not is_transposed or not any(map(int.__gt__, output_padding, padding)):
        return
    products = insert_call(node, node.target, source, weight, None, *node.args[3:])
    channels = bias.meta["val"].shape[0]
    column = insert_call(node, _aten.view.default, bias, [channels if isinstance(channels, int) else -1, *[1] * axes])
    replace(node, insert_call(node, _aten.add.Tensor, products, column))
