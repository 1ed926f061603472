"""Copy a partition's program for the exporter, without the user's names.

Rules
1. Nodes, placeholders, nested graphs and constants are named by their index. So the ONNX model cannot depend on the names
   that a user chose.
2. ``meta[ORIGIN_KEY]`` of a call_function node of the outer graph is the node's index among the call_function nodes of
   the *original* graph. A pass that inserts nodes does not change this index.
3. The original program is not changed.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument

from trtbuild.stages.convert.canonical import ORIGIN_KEY
from trtbuild.stages.program.functional import Program, assemble
from trtbuild.stages.program.symbols import Symbols


def copy_for_exporter(program: Program) -> ExportedProgram:
    """Copy `program` with canonical names. The weights remain its first inputs."""
    copier = _Copier()
    module = copier.copy(program.exported.graph_module)
    names = {old.name: new.name for old, new in copier.outer.items()}
    signature = program.exported.graph_signature
    constants: dict[str, torch.Tensor] = {}
    inputs = []
    for spec in signature.input_specs:
        argument = TensorArgument(name=names[spec.arg.name])
        target = None
        if spec.kind != InputKind.USER_INPUT:
            target = f"c{len(constants)}"
            constants[target] = program.exported.constants[str(spec.target)]
        inputs.append(InputSpec(kind=spec.kind, arg=argument, target=target))
    outputs = [
        OutputSpec(kind=OutputKind.USER_OUTPUT, arg=TensorArgument(name=names[node.name]), target=None)
        for node in program.output_nodes
    ]
    exported = assemble(module, inputs, outputs, program.exported.range_constraints, constants)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    for index, node in enumerate(calls):
        # the exporter needs a module stack, which may be empty
        copier.outer[node].meta.update({ORIGIN_KEY: index, "nn_module_stack": {}})
    return exported


def size_names(program: Program) -> dict[str, str]:
    """Map torch's text of each size expression to its text with canonical symbols: ``197*s77`` → ``197*d0``.

    The symbol of a size that depends on data becomes ``u<k>``."""
    symbols = {symbol: sympy.Symbol(f"d{index}", integer=True) for index, symbol in enumerate(Symbols(program).order)}
    names: dict[str, str] = {}
    for node in program.graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            for size in value.shape if isinstance(value, torch.Tensor) else ():
                if isinstance(size, torch.SymInt) and str(size.node) not in names:
                    expression = size.node.expr
                    for symbol in sorted(expression.free_symbols - symbols.keys(), key=str):
                        symbols[symbol] = sympy.Symbol(f"u{len(symbols)}", integer=True)
                    names[str(size.node)] = str(expression.xreplace(symbols))
    return names


class _Copier:
    def __init__(self) -> None:
        self.outer: dict[torch.fx.Node, torch.fx.Node] = {}

    def copy(self, module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        """Copy `module` and the graphs nested in it. Afterwards, `outer` maps the nodes of `module` to their copies."""
        graph = torch.fx.Graph()
        attributes: dict[str, Any] = {}
        new_names: dict[str, str] = {}
        nodes: dict[torch.fx.Node, torch.fx.Node] = {}
        for index, node in enumerate(module.graph.nodes):
            name = f"n{index}"
            target = node.target
            if node.op == "placeholder":
                target = name
            elif node.op == "get_attr":
                target = self._copy_attribute(module, str(node.target), attributes, new_names)
            copied = graph.create_node(
                node.op,
                target,
                torch.fx.map_arg(node.args, nodes.__getitem__),
                torch.fx.map_arg(node.kwargs, nodes.__getitem__),
                name,
            )
            if "val" in node.meta:
                copied.meta["val"] = node.meta["val"]
            nodes[node] = copied
        self.outer = nodes
        return torch.fx.GraphModule(attributes, graph)

    def _copy_attribute(
        self, module: torch.fx.GraphModule, path: str, attributes: dict[str, Any], new_names: dict[str, str]
    ) -> str:
        if path not in new_names:
            value: Any = module
            for name in path.split("."):
                value = getattr(value, name)
            new_names[path] = f"a{len(new_names)}"
            attributes[new_names[path]] = self.copy(value) if isinstance(value, torch.fx.GraphModule) else value
        return new_names[path]
