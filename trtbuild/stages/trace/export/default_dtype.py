"""Write torch's default dtype into a traced program, if the model's code has changed it.

``torch.set_default_dtype(torch.bfloat16)`` is common in code of language models. PyTorch then divides integers in bfloat16,
for example, and creates tensors of this type. A traced program does not contain the default. All later steps and packages
run it under float32.

Rules
1. A call of an operator of PyTorch has the default dtype if its result does, and if none of its arguments is a float
   or complex tensor. Operators from outside PyTorch choose their types themselves.
2. If the operator has an argument `dtype`, the default dtype becomes this argument, unless the call has it already.
   Otherwise the integer and bool tensors of the call are converted, except the condition of ``where``, as PyTorch does
   itself.
3. If the default is float32, as it is in torch, `write_default_dtype` changes nothing.
4. The proof runs the program under float32. So a call that these rules do not cover is an error.
5. A program that was exported in another process has the types that values had there. If a call gives another type in this
   process, its type depends on the default dtype. Then the type of the other process is written.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.export import ExportedProgram

_where = torch.ops.aten.where


def write_default_dtype(program: ExportedProgram) -> None:
    """Change the graphs of `program` so that they compute the same under float32 (rules 1 and 2)."""
    if torch.get_default_dtype() is not torch.float32:
        _write_dtypes(program.graph_module, torch.get_default_dtype())


def write_recorded_dtype(module: torch.nn.Module) -> None:
    """Change the graphs of `module`, whose program was exported in another process. They then compute the types that the
    program has (rule 5). Raises ValueError if rules 1 and 2 do not cover a call."""
    changed_node = _first_changed_node(module)
    if changed_node is None:
        return
    _write_dtypes(module, changed_node.meta["val"].dtype)
    changed_node = _first_changed_node(module)
    if changed_node is not None:
        raise ValueError(f"the result of {changed_node.target} is {changed_node.meta['val'].dtype}")


def _first_changed_node(module: torch.nn.Module) -> torch.fx.Node | None:
    """The first call whose result now has another type than in the program."""
    for graph in _graph_modules(module):
        for node in graph.graph.nodes:
            recorded = node.meta.get("val")
            if isinstance(recorded, FakeTensor) and recorded.is_floating_point() and _has_no_float_argument(node):
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda entry: entry.meta["val"])
                with recorded.fake_mode:
                    if node.target(*args, **kwargs).dtype is not recorded.dtype:
                        return node
    return None


def _write_dtypes(module: torch.nn.Module, dtype: torch.dtype) -> None:
    for graph in _graph_modules(module):
        for node in list(graph.graph.nodes):
            if _has_dtype(node, dtype):
                _write_dtype(node, dtype)
        graph.recompile()


def _graph_modules(module: torch.nn.Module) -> list[torch.fx.GraphModule]:
    return [entry for entry in module.modules() if isinstance(entry, torch.fx.GraphModule)]


def _has_dtype(node: torch.fx.Node, dtype: torch.dtype) -> bool:
    results = node.meta.get("val")
    results = results if isinstance(results, list | tuple) else [results]
    is_result = any(isinstance(result, torch.Tensor) and result.dtype is dtype for result in results)
    return is_result and _has_no_float_argument(node)


def _has_no_float_argument(node: torch.fx.Node) -> bool:
    """Whether `node` calls an operator of PyTorch without a float or complex tensor (rule 1)."""
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace not in ("aten", "prims"):
        return False
    return not any(_is_float(entry.meta.get("val")) for entry in node.all_input_nodes)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _write_dtype(node: torch.fx.Node, dtype: torch.dtype) -> None:
    target: Any = node.target
    position = next((n for n, argument in enumerate(target._schema.arguments) if argument.name == "dtype"), None)
    if position is not None:
        if len(node.args) <= position and node.kwargs.get("dtype") is None:
            node.kwargs = {**node.kwargs, "dtype": dtype}
        return
    if target is _where.Scalar:  # no argument can be converted: the first number becomes a tensor
        condition, number, other = node.args
        node.target, node.args = _where.ScalarOther, (condition, _add_tensor(node, number, dtype), other)
        return
    for argument in node.all_input_nodes:
        value = argument.meta.get("val")
        is_condition = target in (_where.ScalarSelf, _where.ScalarOther, _where.self) and argument is node.args[0]
        if isinstance(value, torch.Tensor) and not is_condition:
            with node.graph.inserting_before(node), value.fake_mode:
                converted = node.graph.call_function(torch.ops.aten._to_copy.default, (argument,), {"dtype": dtype})
                converted.meta = {**node.meta, "val": torch.ops.aten._to_copy.default(value, dtype=dtype)}
            node.replace_input_with(argument, converted)


def _add_tensor(node: torch.fx.Node, number: Any, dtype: torch.dtype) -> torch.fx.Node:
    """Add a 0-d tensor of `dtype` before `node`."""
    options = {"dtype": dtype, "device": torch.device("cpu")}
    value: Any = number.meta["val"] if isinstance(number, torch.fx.Node) else number
    with node.graph.inserting_before(node), node.meta["val"].fake_mode:
        scalar = node.graph.call_function(torch.ops.aten.scalar_tensor.default, (number,), options)
        scalar.meta = {**node.meta, "val": torch.ops.aten.scalar_tensor.default(value, **options)}
    return scalar
