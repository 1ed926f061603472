"""Write the canonical text of a program. The text is stored, and its digest is in the keys of later steps.

Rules
1. The text contains every node: its operator with overload, args and kwargs, except the message of ``_assert_scalar``.
   An argument that is another node is written as the number of this node. The text also contains nested graphs; a
   digest of the dtype, shape and values of each constant; the dtype, shape, stride and device type of every value; the
   order of inputs and outputs; symbolic sizes with their ranges.
2. The text does not contain names (of nodes, inputs, outputs, weights and symbols), module paths, stack traces or device
   ordinals. Nodes are numbered in graph order, and symbols in the order in which they first appear in the inputs.
3. Floats are written as their IEEE bits, in hexadecimal digits, and strings as JSON. A value of a type without a rule
   raises TypeError. ``repr`` is never used.
4. Weights are inputs. The text contains their dtype, shape and stride, but not their values.
5. An operator from outside PyTorch is followed by the digest of its implementation, if `program_text` gets a function that
   returns this digest. Otherwise its schema follows, because a stored program calls it with this schema.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from typing import Any

import sympy
import torch

from trtbuild.stages.program.custom_operators import is_custom
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.symbols import Symbols
from trtbuild.stages.raw_tensors import raw_bytes

SCHEMA = "trtbuild.graph/1"


def program_text(program: Program, implementation_digest: Callable[[str], str] | None = None) -> str:
    """Write the text of `program`. `implementation_digest` takes the name of an operator from outside PyTorch, and returns
    the digest of its implementation (rule 5)."""
    symbols = Symbols(program)
    constants = program.constants
    weights, inputs = program.weight_nodes, program.input_nodes
    writer = _Writer(symbols, implementation_digest)
    for node in program.placeholders:
        if node.name in constants:
            kind = f"constant {tensor_digest(constants[node.name])}"
        else:
            kind = "weight" if node in weights else "input"
        writer.placeholder(node, kind)
    # the order of inputs may differ from the order of their placeholders
    order = " ".join(writer.reference(node) for node in [*weights, *inputs])
    writer.body(program.exported.graph_module, program.graph)
    ranges = [f"symbol {k} in {low}..{'' if high is None else high}" for k, (low, high) in enumerate(symbols.ranges)]
    return "\n".join([SCHEMA, f"weights {program.weights}", *ranges, f"order {order}", *writer.lines, ""])


def module_paths(program: Program) -> list[tuple[str, str, str]]:
    """For each call node, in graph order: the path of its module, the operator's name, and the keys of all modules around
    the node. torch chooses the keys: ``L__self__layers.0`` in the first call of a module, ``L__self__layers.0@1`` in the
    second. The partition step reads the paths.
    """
    paths = []
    for node in program.graph.nodes:
        if node.op == "call_function":
            stack = node.meta.get("nn_module_stack") or {}
            path = list(stack.values())[-1][0] if stack else ""
            paths.append((path, target_name(node.target), " ".join(stack)))
    return paths


def tensor_digest(tensor: torch.Tensor) -> str:
    """SHA-256 of a tensor's dtype, shape and values. Strides do not count: the values are in row-major order."""
    value = tensor.detach()
    head = f"{value.dtype}{list(value.shape)}".encode()
    return hashlib.sha256(struct.pack(">Q", len(head)) + head + raw_bytes(value)).hexdigest()


def target_name(target: Any) -> str:
    """The name of a node's target: ``aten.add.Tensor``, ``_operator.getitem``, ``higher_order.cond``."""
    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}.{target._opname}.{target._overloadname}"
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    if callable(target):
        module = getattr(target, "__module__", None) or ""
        return f"{module}.{getattr(target, '__qualname__', target.__name__)}"
    raise TypeError(f"a node calls {type(target).__name__}, which has no canonical name")


def _hashed_arguments(node: torch.fx.Node) -> tuple[Any, ...]:
    """A call's positional arguments. The message of ``_assert_scalar`` is left out, because it contains torch's names."""
    arguments: tuple[Any, ...] = node.args
    return arguments[:1] if node.target is torch.ops.aten._assert_scalar.default else arguments


class _Writer:
    def __init__(self, symbols: Symbols, implementation_digest: Callable[[str], str] | None) -> None:
        self.lines: list[str] = []
        self._symbols = symbols
        self._implementation_digest = implementation_digest
        self._numbers: dict[torch.fx.Node, int] = {}

    def placeholder(self, node: torch.fx.Node, kind: str) -> None:
        self.lines.append(f"{self._name(node)} = {kind} : {self._value(node.meta.get('val'))}")

    def reference(self, node: torch.fx.Node) -> str:
        return f"%{self._numbers[node]}"

    def body(self, module: torch.fx.GraphModule, graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if node.op == "call_function":
                args = [self._argument(argument, module) for argument in _hashed_arguments(node)]
                args += [f"{key}={self._argument(value, module)}" for key, value in sorted(node.kwargs.items())]
                call = f"{self._target(node.target)}({', '.join(args)})"
                self.lines.append(f"{self._name(node)} = {call} : {self._value(node.meta.get('val'))}")
            elif node.op == "get_attr":
                self._attribute(node, module)
            elif node.op == "output":
                self.lines.append(f"return {self._argument(node.args[0], module)}")
            elif node.op != "placeholder":
                raise TypeError(f"an exported graph has no {node.op} nodes")

    def _attribute(self, node: torch.fx.Node, module: torch.fx.GraphModule) -> None:
        value: Any = module
        for name in str(node.target).split("."):
            value = getattr(value, name)
        if isinstance(value, torch.fx.GraphModule):
            self.lines.append(f"{self._name(node)} = graph {{")
            for nested_node in value.graph.nodes:
                if nested_node.op == "placeholder":
                    self.placeholder(nested_node, "argument")
            self.body(value, value.graph)
            self.lines.append("}")
        elif isinstance(value, torch.Tensor):
            self.lines.append(f"{self._name(node)} = constant {tensor_digest(value)} : {self._value(value)}")
        else:
            raise TypeError(f"a graph attribute of type {type(value).__name__} has no canonical form")

    def _name(self, node: torch.fx.Node) -> str:
        return f"%{self._numbers.setdefault(node, len(self._numbers))}"

    def _target(self, target: Any) -> str:
        name = target_name(target)
        if is_custom(target):
            if self._implementation_digest is None:
                return f"{name}@{json.dumps(str(target._schema))}"
            return f"{name}@{self._implementation_digest(name)}"
        return name

    def _argument(self, value: Any, module: torch.fx.GraphModule) -> str:
        if isinstance(value, torch.fx.Node):
            return self.reference(value)
        if value is None or isinstance(value, bool):
            return str(value)
        if isinstance(value, int):
            return str(value)
        if isinstance(value, float):
            return f"f64:{struct.pack('>d', value).hex()}"
        if isinstance(value, complex):
            return f"c128:{struct.pack('>dd', value.real, value.imag).hex()}"
        if isinstance(value, str):
            return json.dumps(value)
        if isinstance(value, list | tuple):
            return f"[{', '.join(self._argument(item, module) for item in value)}]"
        if isinstance(value, dict):
            items = (f"{json.dumps(key)}: {self._argument(item, module)}" for key, item in value.items())
            return f"{{{', '.join(items)}}}"
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return str(value)
        if isinstance(value, torch.device):
            return f"device:{value.type}"
        if isinstance(value, slice):
            return f"slice({', '.join(self._argument(v, module) for v in (value.start, value.stop, value.step))})"
        if value is Ellipsis:
            return "..."
        if isinstance(value, torch.SymInt):
            return f"int{{{json.dumps(self._symbols.size_expression(value))}}}"
        raise TypeError(f"an argument of type {type(value).__name__} has no canonical form")

    def _int_text(self, value: torch.SymInt) -> str:
        """The text of a symbolic int. A bool that was converted to an int is a Piecewise, which has no size expression."""
        if value.node.expr.has(sympy.Piecewise):
            return self._symbols.sympy_text(value.node.expr)
        return json.dumps(self._symbols.size_expression(value))

    def _value(self, value: Any) -> str:
        if value is None:
            return "none"
        if isinstance(value, torch.Tensor):
            shape = [self._symbols.size_expression(size) for size in value.shape]
            stride = (
                [self._symbols.size_expression(step) for step in value.stride()]
                if value.layout is torch.strided
                else []
            )
            layout = "" if value.layout is torch.strided else f" {value.layout}"
            return f"{value.dtype}{json.dumps(shape)} stride {json.dumps(stride)} {value.device.type}{layout}"
        if isinstance(value, list | tuple):
            return f"({', '.join(self._value(item) for item in value)})"
        if isinstance(value, bool | int | float | str):
            return self._argument(value, torch.fx.GraphModule({}, torch.fx.Graph()))
        if isinstance(value, torch.SymInt):
            return f"int{{{self._int_text(value)}}}"
        if isinstance(value, torch.SymFloat):
            return f"float{{{self._symbols.sympy_text(value.node.expr)}}}"
        if isinstance(value, torch.SymBool):
            return f"bool{{{self._symbols.sympy_text(value.node.expr)}}}"
        raise TypeError(f"a value of type {type(value).__name__} has no canonical form")
