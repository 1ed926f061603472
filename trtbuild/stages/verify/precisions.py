"""What the values of a program were computed in.

Rules
1. The precision of a value is the coarsest floating type among it and all that it was computed from: inputs, weights,
   constants, and every value in between. What was rounded to float16 once is not more exact in float32 later, and where
   it is rounded, a difference of one bit of float32 may become one of float16.
2. It begins anew with each partition, at the types of what the partition takes: it is compared on the very values that
   PyTorch gives it, so that nothing before it can make it differ. The model as a whole has it all along the way.
3. A size follows from no value. An integer that follows from a coarse value (``argmax``) is coarse for what follows.
4. float64 counts as float32, and float8 as bfloat16: the finest and the coarsest that have tolerances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from trtbuild.core.model.spec import Precision
from trtbuild.core.model.verification import coarsest
from trtbuild.core.partition.partitions import Partition, Partitions
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.text import target_name

_COARSE: Mapping[str, Precision] = {"float16": "float16", "complex32": "float16", "bfloat16": "bfloat16"}

#: Partition, and the precisions of what it takes → those of what it gives.
OfPart = Callable[[Partition, Sequence[Precision]], Sequence[Precision]]


def of_dtype(name: str) -> Precision:
    """The precision of a type by torch's name; float32 of what is finer, or no floating type."""
    return "bfloat16" if name.startswith("float8") else _COARSE.get(name, "float32")


def of_nodes(program: Program, inputs: Sequence[Precision] | None = None) -> dict[torch.fx.Node, Precision]:
    """The precision of every node's value. `inputs` are those of the program's inputs where they are known to be coarser
    than their types."""
    coarser = dict(zip(program.input_nodes, inputs, strict=True)) if inputs is not None else {}
    found: dict[torch.fx.Node, Precision] = {}
    for node in program.graph.nodes:
        before = [] if _is_size(node) else [found[each] for each in node.all_input_nodes]
        found[node] = coarsest([_own(node), coarser.get(node, "float32"), *before])
    return found


def of_outputs(program: Program, inputs: Sequence[Precision] | None = None) -> list[Precision]:
    """The precision of every output, in order."""
    found = of_nodes(program, inputs)
    return [found[node] for node in program.output_nodes]


def of_model(
    partitions: Partitions, inputs: Sequence[Precision], weights: Sequence[Precision], of_part: OfPart
) -> list[Precision]:
    """The precision of every output of a model, from its inputs through all partitions on the way."""
    found = {f"input:{k}": value for k, value in enumerate(inputs)}
    found |= {f"weight:{k}": value for k, value in enumerate(weights)}
    for part in partitions.partitions:
        given = of_part(part, [found[source] for source, _ in part.inputs])
        found |= {f"{part.name}:{k}": value for k, value in enumerate(given)}
    return [found[source] for source in partitions.outputs]


def _own(node: torch.fx.Node) -> Precision:
    """What a node holds by itself: its value, or the graph that it stands for."""
    found = _of_value(node.meta.get("val"))
    if node.op != "get_attr":
        return found
    held: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        held = getattr(held, name, None)
    if isinstance(held, torch.fx.GraphModule):  # a branch of torch.cond
        return coarsest([found, *map(_own, held.graph.nodes)])
    return coarsest([found, _of_value(held)])


def _of_value(value: Any) -> Precision:
    if isinstance(value, torch.Tensor):
        return of_dtype(str(value.dtype).removeprefix("torch."))
    return coarsest(map(_of_value, value)) if isinstance(value, list | tuple) else "float32"


def _is_size(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and target_name(node.target).startswith("aten.sym_")
