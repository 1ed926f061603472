"""The functional form of an ExportedProgram: weights are its first inputs, and its outputs are a flat tuple.

Rules
1. The placeholders are, in this order: weights (parameters and buffers), lifted constants, inputs. In the signature of
   the ExportedProgram, weights are user inputs. So a program does not contain the values of its weights.
2. A program contains its lifted constants (tensors that are neither parameters nor buffers).
3. The metadata of a node keeps only ``val`` and the module paths of ``nn_module_stack``. Stack traces, file names and class
   names are removed, because a stored program must not change when a source file moves.
4. The trace step replaces numbers among the outputs by 0-d tensors. It rejects models that cannot have this form, for
   example a model without a tensor among its outputs, or with a mutated buffer that is not in ``state:``.
"""

from __future__ import annotations

import io
import json
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)

from trtbuild import declared_sizes
from trtbuild.stages.program.archives import quick_archives
from trtbuild.stages.program.custom_operators import SCHEMAS_FILE, define_missing_operators, schemas_in, stored_schemas
from trtbuild.stages.program.fixed_symbols import suppress_new_guards
from trtbuild.stages.program.quantized import register_operators_of
from trtbuild.stored_sizes import solve_sizes

_KEPT_META_KEYS = ("val", "nn_module_stack")
_MODULE_CLASS = "torch.nn.Module"
_WEIGHT_KINDS = (InputKind.PARAMETER, InputKind.BUFFER)
_CONSTANT_KINDS = (InputKind.CONSTANT_TENSOR,)


@dataclass
class Program:
    """A functional program. The first `weights` inputs of `exported` are weights."""

    exported: ExportedProgram
    weights: int

    @property
    def graph(self) -> torch.fx.Graph:
        return self.exported.graph_module.graph

    @property
    def placeholders(self) -> list[torch.fx.Node]:
        return [node for node in self.graph.nodes if node.op == "placeholder"]

    @property
    def constants(self) -> dict[str, torch.Tensor]:
        """Placeholder name → value of each lifted constant."""
        return {
            spec.arg.name: self.exported.constants[spec.target]
            for spec in self.exported.graph_signature.input_specs
            if spec.kind in _CONSTANT_KINDS and spec.target is not None
        }

    @property
    def weight_nodes(self) -> list[torch.fx.Node]:
        return self._user_input_nodes()[: self.weights]

    @property
    def input_nodes(self) -> list[torch.fx.Node]:
        return self._user_input_nodes()[self.weights :]

    @property
    def output_nodes(self) -> list[torch.fx.Node]:
        (output,) = (node for node in self.graph.nodes if node.op == "output")
        return list(output.args[0])

    def rename_outputs(self) -> None:
        """Write the names of the output nodes into the signature, because a pass may have replaced an output."""
        for spec, node in zip(self.exported.graph_signature.output_specs, self.output_nodes, strict=True):
            spec.arg.name = node.name

    def _user_input_nodes(self) -> list[torch.fx.Node]:
        nodes_by_name = {node.name: node for node in self.placeholders}
        return [
            nodes_by_name[spec.arg.name]
            for spec in self.exported.graph_signature.input_specs
            if spec.kind == InputKind.USER_INPUT
        ]

    def to_bytes(self) -> bytes:
        """A ``.pt2`` archive that `from_bytes` reads."""
        buffer = io.BytesIO()
        extra = {"trtbuild.weights": str(self.weights)}
        schemas = schemas_in(self.exported.graph_module)
        if schemas:  # a process that has not loaded the operators needs the schemas to read the program
            extra[SCHEMAS_FILE] = json.dumps(schemas)
        with quick_archives(), solve_sizes:
            torch.export.save(self.exported, buffer, extra_files=extra)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Program:
        """Read a stored program. Operators from outside PyTorch that this process lacks are defined without kernels
        (`custom_operators`).

        Raises SourceError if the process has an operator of the same name with another schema."""
        extra = {"trtbuild.weights": ""}
        register_operators_of(data)
        declared_sizes.define_operator_if_called(data)
        define_missing_operators(stored_schemas(data))
        with suppress_new_guards(), quick_archives(), solve_sizes:
            exported = torch.export.load(io.BytesIO(data), extra_files=extra)
        # torch adds a getitem for each result of a call. Remove the unused ones, because they were not stored.
        for node in reversed(exported.graph.nodes):
            if node.target is operator.getitem and not node.users:
                exported.graph.erase_node(node)
        exported.graph_module.recompile()
        _restore_examples(exported)
        return cls(exported, int(extra["trtbuild.weights"]))


def calls_with_nested(call: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Yield a call_function node, and those of the graphs among its arguments, such as the branches of ``torch.cond``."""
    yield call
    for operand in call.all_input_nodes:
        if operand.op == "get_attr":
            value: Any = operator.attrgetter(str(operand.target))(call.graph.owning_module)
            for module in value.modules() if isinstance(value, torch.fx.GraphModule) else ():
                yield from (node for node in module.graph.nodes if node.op == "call_function")


def _restore_examples(exported: ExportedProgram) -> None:
    """Set the missing example values of symbols in torch's tables. torch calls them hints. For a size ``4*s``, a file
    contains only the hint of ``4*s``, and not that of ``s``."""
    for node in exported.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt) and size.node.has_hint():
                unit, symbol = size.node.expr.as_coeff_Mul()
                examples = size.node.shape_env.backed_var_to_val
                if symbol.is_Symbol and symbol not in examples and size.node.hint % int(unit) == 0:
                    size.node.shape_env.add_backed_var_to_val(symbol, size.node.hint // int(unit))


@dataclass(frozen=True)
class NamedWeight:
    """A weight's name in the module, and whether ``state_dict`` contains it."""

    name: str
    persistent: bool


def functional(exported: ExportedProgram) -> tuple[Program, tuple[NamedWeight, ...]]:
    """Return the functional form of an exported program, and its weights in the order of its inputs.

    The caller has checked that the program mutates nothing. Outputs that are not tensors are left out.
    """
    signature = exported.graph_signature
    slots = [
        NamedWeight(str(spec.target), spec.kind == InputKind.PARAMETER or bool(spec.persistent))
        for spec in signature.input_specs
        if spec.kind in _WEIGHT_KINDS
    ]
    inputs = [
        InputSpec(kind=InputKind.USER_INPUT, arg=spec.arg, target=None) if spec.kind in _WEIGHT_KINDS else spec
        for spec in signature.input_specs
    ]
    outputs = [spec for spec in signature.output_specs if isinstance(spec.arg, TensorArgument)]
    output_names = {spec.arg.name for spec in outputs}
    (output,) = (node for node in exported.graph.nodes if node.op == "output")
    output.args = (
        tuple(node for node in output.args[0] if isinstance(node, torch.fx.Node) and node.name in output_names),
    )
    # torch stores non-persistent buffers among the constants. Their values are not part of the program.
    lifted = {spec.target for spec in inputs if spec.kind in _CONSTANT_KINDS}
    constants = {name: value for name, value in exported.constants.items() if name in lifted}
    assembled = assemble(exported.graph_module, inputs, outputs, exported.range_constraints, constants)
    return Program(assembled, len(slots)), tuple(slots)


def assemble(
    module: torch.fx.GraphModule,
    inputs: list[InputSpec],
    outputs: list[OutputSpec],
    ranges: dict[object, object],
    constants: dict[str, torch.Tensor],
) -> ExportedProgram:
    """Make an ExportedProgram in functional form from a graph."""
    for node in module.graph.nodes:
        node.meta = {key: node.meta[key] for key in _KEPT_META_KEYS if key in node.meta}
        stack = node.meta.get("nn_module_stack")
        if stack:  # only the paths (rule 3)
            node.meta["nn_module_stack"] = {key: (path, _MODULE_CLASS) for key, (path, _) in stack.items()}
    count = sum(spec.kind == InputKind.USER_INPUT for spec in inputs)
    in_spec = pytree.tree_flatten(((0,) * count, {}))[1]
    out_spec = pytree.tree_flatten((0,) * len(outputs))[1]
    outputs = [OutputSpec(kind=OutputKind.USER_OUTPUT, arg=spec.arg, target=None) for spec in outputs]
    module.recompile()
    return ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=ExportGraphSignature(inputs, outputs),
        state_dict={},
        range_constraints=dict(ranges),
        module_call_graph=[
            ModuleCallEntry("", ModuleCallSignature(inputs=[], outputs=[], in_spec=in_spec, out_spec=out_spec))
        ],
        example_inputs=None,
        constants=dict(constants),
    )
