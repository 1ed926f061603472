"""Calls of operators that become TensorRT plugins (the field ``plugins:``).

Rules
1. Tensors that a call reads are the plugin's inputs, in the order of the operator's arguments. A call that passes None
   before a tensor is an error. All other arguments are fields of the plugin: int, float, bool (as 0 or 1), str, and lists
   of one of these types. An argument that is None is left out. So is an argument that the manifest maps to null. The
   plugin also gets the fixed fields that the manifest gives (`Plugin.attributes`). Two more attributes of the ONNX node,
   the plugin's version and namespace, are for TensorRT's parser.
2. A field is a constant, so it cannot be an argument that depends on a size or on data.
3. The types and shapes of the results are those of the operator's fake implementation. In the program, a node after the
   call checks the sizes (`size_checks`). The ONNX model has no such node, because the compiler compares the network with
   the declared types and shapes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx.defs
import torch
from onnx_ir.tensor_adapters import from_torch_dtype

from trtbuild import declared_sizes
from trtbuild.core.model.plugins import (
    NAMESPACE_ATTRIBUTE,
    ONNX_DOMAIN,
    VERSION_ATTRIBUTE,
    Plugin,
    operator_name,
)
from trtbuild.core.values.nearest import suggestion
from trtbuild.errors import SourceError
from trtbuild.stages.program.custom_operators import is_custom

_SCALARS = (bool, int, float, str)


@dataclass(frozen=True)
class PluginCall:
    """The inputs and the fields of the plugin that a call becomes, and its two other attributes (rules 1 and 2)."""

    inputs: tuple[torch.fx.Node, ...]
    fields: Mapping[str, Any]


def name_of(target: Any) -> str | None:
    """The name of an operator from outside PyTorch, as manifests write it (``mylib::roi``). None for other operators."""
    return operator_name(target.namespace, target._opname, target._overloadname) if is_custom(target) else None


def is_plugin(node: Any, plugins: Mapping[str, Plugin]) -> bool:
    """Whether a node is a call that becomes a plugin. `plugins`: name of an operator → its plugin."""
    return isinstance(node, torch.fx.Node) and node.op == "call_function" and name_of(node.target) in plugins


def plugin_call_checked_by(node: torch.fx.Node, plugins: Mapping[str, Plugin]) -> torch.fx.Node | None:
    """If `node` checks a result of a call that becomes a plugin: this call. Otherwise None (rule 3)."""
    if not declared_sizes.is_size_check(node.target):
        return None
    source: Any = node.args[0]
    call = source.args[0] if getattr(source, "target", None) is operator.getitem else source
    return call if is_plugin(call, plugins) else None


def map_operators_to_plugins(plugins: Iterable[Plugin]) -> dict[str, Plugin]:
    """Name of an operator → its plugin."""
    return {plugin.operator: plugin for plugin in plugins}


def plugins_called(graph: torch.fx.Graph, plugins: Iterable[Plugin]) -> tuple[Plugin, ...]:
    names = {name_of(node.target) for node in graph.nodes if node.op == "call_function"}
    return tuple(plugin for plugin in plugins if plugin.operator in names)


def check_plugins(graph: torch.fx.Graph, plugins: Sequence[Plugin]) -> None:
    """Raise SourceError if a plugin has the name of an ONNX operator, if the graph never calls a plugin's operator, or if a
    call cannot become a plugin."""
    calls = [node for node in graph.nodes if node.op == "call_function" and is_custom(node.target)]
    names = {str(name_of(node.target)) for node in calls}
    for plugin in plugins:
        if plugin.operator not in names:
            raise _error(
                plugin,
                f"the model never calls the operator {plugin.operator}",
                suggestion(plugin.operator, sorted(names), "operators from outside PyTorch that it calls")
                if names
                else "remove the operator: the model calls no operator from outside PyTorch",
            )
        if onnx.defs.has(plugin.name):
            raise _error(
                plugin,
                f"{plugin.name} is an operator of ONNX, so TensorRT's parser would not look for a plugin",
                "give the plugin another name",
            )
    plugins_by_operator = map_operators_to_plugins(plugins)
    for node in calls:
        if is_plugin(node, plugins_by_operator):
            plugin_call(node, plugins_by_operator[str(name_of(node.target))])


def plugin_call(node: torch.fx.Node, plugin: Plugin) -> PluginCall:
    """The inputs and fields of a call (rules 1 and 2). Raises SourceError if the call cannot become a plugin."""
    arguments = node.target._schema.arguments
    unknown = [name for name in plugin.arguments if name not in {argument.name for argument in arguments}]
    if unknown:
        raise _error(
            plugin,
            f"the operator {plugin.operator} has no argument {unknown[0]!r}",
            suggestion(unknown[0], [argument.name for argument in arguments], "arguments"),
        )
    inputs: list[torch.fx.Node | None] = []
    fields: dict[str, Any] = {}
    for position, argument in enumerate(arguments):
        if position < len(node.args):
            value = node.args[position]
        else:
            value = node.kwargs.get(argument.name, argument.default_value)
        if "Tensor" in str(argument.type):
            inputs += value if isinstance(value, list | tuple) else [value]
            continue
        field = plugin.arguments.get(argument.name, argument.name)
        if value is None or field is None:
            continue
        if field in fields or field in (VERSION_ATTRIBUTE, NAMESPACE_ATTRIBUTE):
            other = "another argument" if field in fields else "TensorRT's parser"
            raise _error(
                plugin,
                f"the argument {argument.name!r} of {plugin.operator} and {other} both set the field {field!r}",
                f"give the argument another field, or write `arguments: {{{argument.name}: null}}` for the operator",
            )
        constant = _constant(value, argument.name, plugin)
        fields[field] = _as_floats(constant) if "float" in str(argument.type) else constant
    while inputs and inputs[-1] is None:
        inputs.pop()
    if None in inputs:
        raise _error(plugin, f"{plugin.operator} is called with None before a tensor", "pass a tensor")
    fixed = {VERSION_ATTRIBUTE: plugin.version, NAMESPACE_ATTRIBUTE: plugin.namespace}
    return PluginCall(tuple(entry for entry in inputs if entry is not None), {**fields, **plugin.attributes, **fixed})


def write_nodes(graph: torch.fx.Graph, plugins: Mapping[str, Plugin]) -> None:
    """Replace each plugin call by a call of torch's symbolic operator, and remove the checks, in place. The exporter writes
    a symbolic operator as a node of ONNX."""
    for node in list(graph.nodes):
        if declared_sizes.is_size_check(node.target):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif is_plugin(node, plugins):
            symbolic_call = _insert_symbolic_call(node, plugins[str(name_of(node.target))])
            name = node.name
            node.replace_all_uses_with(symbolic_call)
            symbolic_call.meta = dict(node.meta)
            graph.erase_node(node)
            symbolic_call.name = name  # the exporter names values by their nodes
    for node in reversed(graph.nodes):  # sizes that only checks read
        if node.op == "call_function" and isinstance(node.meta.get("val"), torch.SymInt) and not node.users:
            graph.erase_node(node)


def _insert_symbolic_call(node: torch.fx.Node, plugin: Plugin) -> torch.fx.Node:
    from torch.onnx.ops import _symbolic_impl

    call = plugin_call(node, plugin)
    value = node.meta["val"]
    results = value if isinstance(value, list | tuple) else [value]
    options: dict[str, Any] = {
        **vars(_symbolic_impl.EncodedAttrs.from_dict(dict(call.fields))),
        "metadata_props_keys": [],
        "metadata_props_values": [],
        "domain": ONNX_DOMAIN,
        "version": 1,
    }
    types = [int(from_torch_dtype(result.dtype)) for result in results]
    shapes = [list(result.shape) for result in results]
    target: Any
    if isinstance(value, torch.Tensor):
        target = torch.ops.onnx_symbolic._symbolic.default
        arguments: tuple[Any, ...] = (list(call.inputs), plugin.name, types[0])
        options["shape"] = shapes[0]
    else:
        target = torch.ops.onnx_symbolic._symbolic_multi_out.default
        arguments = (list(call.inputs), plugin.name, types)
        options["shapes"] = shapes
    with node.graph.inserting_before(node):
        return node.graph.call_function(target, arguments, options)


def forget_shapes(graph: torch.fx.Graph) -> None:
    """Remove the shapes from symbolic operators, in place, because the exporter cannot read a SymInt argument. The exporter
    takes shapes from ``val``."""
    for node in graph.nodes:
        for name in ("shape", "shapes"):
            if getattr(node.target, "namespace", "") == "onnx_symbolic" and name in node.kwargs:
                node.update_kwarg(name, [])


def _constant(value: Any, argument: str, plugin: Plugin) -> Any:
    if isinstance(value, list | tuple) and all(isinstance(entry, _SCALARS) for entry in value):
        kinds = {float if isinstance(entry, float) else str if isinstance(entry, str) else int for entry in value}
        if len(kinds) == 1:
            (kind,) = kinds
            return [kind(entry) for entry in value]
    elif isinstance(value, bool):
        return int(value)
    elif isinstance(value, int | float | str):
        return value
    if isinstance(value, torch.fx.Node | torch.SymInt | torch.SymFloat) or (
        isinstance(value, list | tuple) and any(isinstance(entry, torch.fx.Node | torch.SymInt) for entry in value)
    ):
        text, hint = "depends on the sizes of inputs, and fields of plugins are constants", "pass a tensor instead"
    else:
        text, hint = f"is {value!r:.40}, which no field of a plugin can be", "leave it out"
    raise _error(
        plugin,
        f"the argument {argument!r} of {plugin.operator} {text}",
        f"{hint}, or write `arguments: {{{argument}: null}}` for the operator",
    )


def _as_floats(value: Any) -> Any:
    """The value of an argument of type float or of a list of floats. torch keeps an int in the default of a schema, such as
    ``float? scale=3``, but a plugin reads the field as a float."""
    return [float(entry) for entry in value] if isinstance(value, list) else float(value)


def _error(plugin: Plugin, text: str, hint: str | None) -> SourceError:
    error = SourceError(text, code="plugins", hint=hint)
    error.field = f"plugins.operators.{plugin.operator}"
    return error
