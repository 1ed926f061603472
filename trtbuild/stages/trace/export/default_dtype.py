"""Write torch's default dtype into a traced program, if the model's code has changed it.

``torch.set_default_dtype(torch.bfloat16)`` is common in code of language models. PyTorch then divides integers in bfloat16,
for example, and creates tensors of this type. A traced program does not contain the default. All later steps and packages
run it under float32.

Rules
1. A call of an operator of PyTorch has the default dtype if its result does, and if none of its arguments is a float
   tensor. Operators from outside PyTorch choose their types themselves.
2. If the operator has an argument `dtype`, the call gets it. Otherwise the integer and bool arguments are converted, as
   PyTorch does itself.
3. Under float32, which is torch's own default, nothing changes.
4. The proof runs the program under float32. So a call that these rules do not cover is an error.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram

_where = torch.ops.aten.where


def write_default_dtype(program: ExportedProgram) -> None:
    """Change the graphs of `program` so that they compute the same under float32 (rules 1 and 2)."""
    if torch.get_default_dtype() is torch.float32:
        return
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in list(module.graph.nodes):
                if _has_default_dtype(node):
                    _write_dtype(node)
            module.recompile()


def _has_default_dtype(node: torch.fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace not in ("aten", "prims"):
        return False
    results = node.meta.get("val")
    results = results if isinstance(results, list | tuple) else [results]
    if not any(isinstance(r, torch.Tensor) and r.dtype is torch.get_default_dtype() for r in results):
        return False
    arguments = [entry.meta.get("val") for entry in node.all_input_nodes]
    return not any(_is_float(argument) for argument in arguments)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _write_dtype(node: torch.fx.Node) -> None:
    dtype = torch.get_default_dtype()
    target: Any = node.target
    position = next((n for n, argument in enumerate(target._schema.arguments) if argument.name == "dtype"), None)
    if position is not None:
        if len(node.args) <= position and node.kwargs.get("dtype") is None:
            node.kwargs = {**node.kwargs, "dtype": dtype}
        return
    if target is _where.Scalar:  # no argument can be converted: the first number becomes a tensor
        condition, number, other = node.args
        node.target, node.args = _where.ScalarOther, (condition, _add_tensor(node, number), other)
        return
    for argument in node.all_input_nodes:
        value = argument.meta.get("val")
        is_condition = target in (_where.ScalarSelf, _where.ScalarOther, _where.self) and argument is node.args[0]
        if isinstance(value, torch.Tensor) and not is_condition:
            with node.graph.inserting_before(node), value.fake_mode:
                converted = node.graph.call_function(torch.ops.aten._to_copy.default, (argument,), {"dtype": dtype})
                converted.meta = {**node.meta, "val": torch.ops.aten._to_copy.default(value, dtype=dtype)}
            node.replace_input_with(argument, converted)


def _add_tensor(node: torch.fx.Node, number: Any) -> torch.fx.Node:
    """Add a 0-d tensor of the default dtype before `node`."""
    options = {"dtype": torch.get_default_dtype(), "device": torch.device("cpu")}
    value: Any = number.meta["val"] if isinstance(number, torch.fx.Node) else number
    with node.graph.inserting_before(node), node.meta["val"].fake_mode:
        scalar = node.graph.call_function(torch.ops.aten.scalar_tensor.default, (number,), options)
        scalar.meta = {**node.meta, "val": torch.ops.aten.scalar_tensor.default(value, **options)}
    return scalar
