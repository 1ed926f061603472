"""Find the precision in which each value of a program was computed.

Rules
1. The precision of a value is the coarsest floating type among the value itself and all values that it was computed from:
   inputs, weights, constants and inner values. A value that was rounded to float16 does not become more exact in float32.
   Rounding may turn a difference of one bit of float32 into a difference of one bit of float16.
2. The precision in a partition follows from the types of its inputs, because the reference computes the inputs, and
   earlier partitions add no error. For the whole model, it follows from the model's inputs, through all partitions.
3. A size does not depend on values. An integer may depend on a coarse value (``argmax``). Values that are computed from
   this integer are then coarse.
4. A number that is computed from sizes alone is exact, because it depends on no rounded value.
5. The dtype float64 counts as float32, and the float8 dtypes as bfloat16. The tolerances of int8, float8 and the types
   of 4 bits are for quantizers only.
6. The result of a quantizer counts as the quantizer's type, because a difference of one bit of float32 may become a whole
   step. (A dequantizer alone rounds nothing, because its input is equal on both sides of the comparison.)
7. If a quantizer of weights has a coarser type than int8, its result counts as int8, because both sides round the same
   weights. Only a weight near the middle between two steps may differ, about one of a million (docs/quantization.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from trtbuild.core.model.verification import TYPES_BY_COARSENESS, RoundedType, coarsest_precision
from trtbuild.core.partition.partitions import Partition, Partitions
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.text import target_name
from trtbuild.stages.program.unquantized import is_quantizer, quantizer_type

_COARSER_THAN_INT8 = TYPES_BY_COARSENESS[TYPES_BY_COARSENESS.index("int8") + 1 :]
_COARSE_DTYPES: Mapping[str, RoundedType] = {"float16": "float16", "complex32": "float16", "bfloat16": "bfloat16"}

#: A function: (partition, precisions of its inputs) → precisions of its outputs.
PartPrecisions = Callable[[Partition, Sequence[RoundedType]], Sequence[RoundedType]]


def precision_of_dtype(name: str) -> RoundedType:
    """Return the precision of torch's dtype `name`; float32 for finer types and for types that are not floating."""
    return "bfloat16" if name.startswith("float8") else _COARSE_DTYPES.get(name, "float32")


def node_precisions(program: Program, inputs: Sequence[RoundedType] | None = None) -> dict[torch.fx.Node, RoundedType]:
    """Return node → the precision of its value. `inputs` are the precisions of the inputs, if coarser than their types."""
    coarser = dict(zip(program.input_nodes, inputs, strict=True)) if inputs is not None else {}
    results: dict[torch.fx.Node, RoundedType] = {}
    variables = set(program.input_nodes)  # values that depend on inputs
    for node in program.graph.nodes:
        if not variables.isdisjoint(node.all_input_nodes):
            variables.add(node)
        input_precisions = [] if _is_size(node) else [results[source] for source in node.all_input_nodes]
        own_precision = _own_precision(node)
        if is_quantizer(node) and node not in variables and own_precision in _COARSER_THAN_INT8:
            own_precision = "int8"
        results[node] = coarsest_precision([own_precision, coarser.get(node, "float32"), *input_precisions])
    return results


def output_precisions(program: Program, inputs: Sequence[RoundedType] | None = None) -> list[RoundedType]:
    results = node_precisions(program, inputs)
    return [results[node] for node in program.output_nodes]


def exact_outputs(program: Program) -> frozenset[int]:
    """Return the positions of the outputs that are numbers computed from sizes alone (rule 4)."""
    return frozenset(position for position, node in enumerate(program.output_nodes) if _is_from_sizes(node))


def _is_from_sizes(node: torch.fx.Node) -> bool:
    if node.target is not torch.ops.aten.scalar_tensor.default or not isinstance(node.args[0], torch.fx.Node):
        return False
    return not free_unbacked_symbols(node.args[0].meta["val"])


def model_precisions(
    partitions: Partitions,
    inputs: Sequence[RoundedType],
    weights: Sequence[RoundedType],
    part_precisions: PartPrecisions,
) -> list[RoundedType]:
    """Return the precision of every output of a model (rule 2)."""
    results = {f"input:{k}": value for k, value in enumerate(inputs)}
    results |= {f"weight:{k}": value for k, value in enumerate(weights)}
    for part in partitions.partitions:
        outputs = part_precisions(part, [results[source] for source, _ in part.inputs])
        results |= {f"{part.name}:{k}": value for k, value in enumerate(outputs)}
    return [results[source] for source in partitions.outputs]


def _own_precision(node: torch.fx.Node) -> RoundedType:
    """Return the precision of a node's own type, or of its nested graph."""
    precision = quantizer_type(node) if is_quantizer(node) else _precision_of_value(node.meta.get("val"))
    if node.op != "get_attr":
        return precision
    attribute: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        attribute = getattr(attribute, name, None)
    if isinstance(attribute, torch.fx.GraphModule):  # a branch of torch.cond
        return coarsest_precision([precision, *map(_own_precision, attribute.graph.nodes)])
    return coarsest_precision([precision, _precision_of_value(attribute)])


def _precision_of_value(value: Any) -> RoundedType:
    if isinstance(value, torch.Tensor):
        return precision_of_dtype(str(value.dtype).removeprefix("torch."))
    return coarsest_precision(map(_precision_of_value, value)) if isinstance(value, list | tuple) else "float32"


def _is_size(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and target_name(node.target).startswith("aten.sym_")
