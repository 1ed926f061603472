"""Convert a graph of TorchDynamo to a module for torch.export. The module takes tensors only.

Rules
1. Weights are attributes. Their values come from the arguments of one call. A size is read from a tensor, or it is a
   number.
2. The module computes on the CPU, even if the program runs on a GPU.
3. The nodes of the outer graph have the module paths that torch.export would set, and no other metadata, because dynamo
   names modules by their addresses. So a model has the same graph in every process.
"""

from __future__ import annotations

import copy
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from trtbuild.stages.dynamo.graph import CapturedGraph, NotSupported, WeightInput

#: Dynamo's name for the program's module: ``L['self']``, ``G['model']``.
_ROOT = re.compile(r"^[A-Z]\['[^']*'\]\.?")


def convert_to_module(
    captured: CapturedGraph, arguments: Sequence[Any], fixed: Mapping[sympy.Symbol, int]
) -> torch.nn.Module:
    """Convert the graph to a module. `arguments` are those of one call. `fixed`: symbol that is not dynamic → its value.
    Raises NotSupported if the graph needs a size that is not the size of an axis."""
    return _Converter(captured, arguments, fixed).module()


class _Converter:
    def __init__(self, captured: CapturedGraph, arguments: Sequence[Any], fixed: Mapping[sympy.Symbol, int]) -> None:
        self._captured = captured
        self._arguments = arguments
        self._fixed = fixed
        self._graph = torch.fx.Graph()
        self._attributes: dict[str, Any] = {}

    def module(self) -> torch.nn.Module:
        captured, graph, copies = self._captured, self._graph, {}
        placeholders = [node for node in captured.module.graph.nodes if node.op == "placeholder"]
        inputs = [graph.placeholder(entry.name) for entry in captured.tensors]
        for entry, node in zip(captured.tensors, inputs, strict=True):
            copies[placeholders[entry.position]] = node
        for weight in captured.weights:
            copies[placeholders[weight.position]] = self._weight(weight)
        for position, expr in captured.scalars:
            copies[placeholders[position]] = self._size(expr, inputs)
        for node in captured.module.graph.nodes:
            if node.op == "placeholder":
                continue
            if node.op == "output":
                returned = [v for v in node.args[0] if isinstance(v, torch.fx.Node) and self._is_tensor(v)]
                graph.output(tuple(copies[value] for value in dict.fromkeys(returned)))
                continue
            copies[node] = graph.node_copy(node, lambda value: copies[value])
            copies[node].args = _move_to_cpu(copies[node].args)
            copies[node].kwargs = _move_to_cpu(copies[node].kwargs)
            copies[node].meta = _module_stack(node)
        module = torch.fx.GraphModule(self._attributes_module(), graph)
        return module.eval()

    @staticmethod
    def _is_tensor(node: torch.fx.Node) -> bool:
        return isinstance(node.meta.get("example_value"), torch.Tensor)

    def _weight(self, weight: WeightInput) -> torch.fx.Node:
        value = self._arguments[weight.position].detach()
        value = value.clone() if value.is_inference() else value
        value = value.cpu()
        base = "w_" + re.sub(r"\W", "_", weight.name)
        name = base
        while name in self._attributes:
            name += "_"
        self._attributes[name] = torch.nn.Parameter(value, requires_grad=False) if weight.is_parameter else value
        return self._graph.get_attr(name)

    def _size(self, expr: sympy.Expr, inputs: Sequence[torch.fx.Node]) -> Any:
        """A number, or a node that reads a size from one of the tensors. Raises NotSupported."""
        if not expr.free_symbols - set(self._fixed):
            return int(expr.subs(self._fixed))
        for dim in self._captured.dims:
            if dim.symbol == expr:
                number, axis, factor = dim.axes[0]
                size = self._graph.call_function(torch.ops.aten.sym_size.int, (inputs[number], axis))
                return size if factor == 1 else self._graph.call_function(operator.floordiv, (size, factor))
        raise NotSupported(f"it needs the size {expr}, which is not the size of an axis")

    def _attributes_module(self) -> torch.nn.Module:
        """The module that contains the graph's attributes: those of dynamo's module, and the weights."""
        root = torch.nn.Module()
        dynamo_module = self._captured.module
        for name, child in dynamo_module.named_children():
            root.add_module(name, _copy_on_cpu(child))
        for name, value in [*dynamo_module._parameters.items(), *dynamo_module._buffers.items()]:
            if value is not None:
                root.register_buffer(name, value.detach().cpu())
        for name, value in vars(dynamo_module).items():
            if isinstance(value, torch.Tensor):
                root.register_buffer(name, value.detach().cpu())
        for name, value in self._attributes.items():
            if isinstance(value, torch.nn.Parameter):
                root.register_parameter(name, value)
            else:
                root.register_buffer(name, value)
        return root


def _copy_on_cpu(nested: torch.nn.Module) -> torch.nn.Module:
    """Copy a nested module, such as a branch of torch.cond, for the CPU (rule 2)."""
    result = copy.deepcopy(nested).cpu()
    for module in result.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.args, node.kwargs = _move_to_cpu(node.args), _move_to_cpu(node.kwargs)
            module.recompile()
    return result


def _module_stack(node: torch.fx.Node) -> dict[str, Any]:
    """The `nn_module_stack` of a node as torch.export writes it (rule 3)."""
    stack = node.meta.get("nn_module_stack") or {}
    modules: dict[str, Any] = {"L__self__": ("", "torch.nn.Module")}
    for key, (path, kind) in stack.items():
        relative_path = _ROOT.sub("", str(path))
        if relative_path:
            modules[f"L__self__{relative_path}{''.join(str(key).partition('@')[1:])}"] = (relative_path, kind)
    return {"nn_module_stack": modules}


def _move_to_cpu(value: Any) -> Any:
    """Replace every device in the arguments of a call by the CPU (rule 2)."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, str) and re.fullmatch(r"cuda(:\d+)?", value):
        return "cpu"
    if isinstance(value, torch.fx.Node):
        return value
    if isinstance(value, list | tuple):
        return type(value)(_move_to_cpu(item) for item in value)
    if isinstance(value, Mapping):
        return {key: _move_to_cpu(item) for key, item in value.items()}
    return value
