"""Apply a precision to a program, as a change of its graph.

TensorRT 11 has no precision flags: a network is strongly typed, and computes in the dtypes of its graph. So the lower
step decides about the dtypes, in three parts:

1. `ranges` finds forward which values may not fit half.
2. `dtypes` finds backward which operators compute in half, by the table of `operators`.
3. `casts` inserts the casts.

Inputs and outputs have the same dtypes as in eager PyTorch. Weights stay in the dtype in which they are stored, so a
program's weights table is the same in every precision. Nested graphs (``torch.cond``) stay in float32, with casts of
their inputs and outputs. ``float32`` changes nothing.
"""

from __future__ import annotations

import torch

from trtbuild.stages.lower.half_precision.casts import Casts
from trtbuild.stages.lower.half_precision.dtypes import decide
from trtbuild.stages.lower.half_precision.ranges import ranges
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def apply_precision(program: Program, request: Request) -> Program:
    """Change `program` in place to compute in the precision of `request`."""
    half = _HALVES.get(request.precision)
    if half is None:
        return program
    constants = program.constants
    owned = {*program.weight_nodes, *(node for node in program.placeholders if node.name in constants)}
    owned |= {node for node in program.graph.nodes if node.op == "get_attr"}
    value_ranges = ranges(program.graph, constants, half)
    Casts(program.graph, half, decide(program.graph, owned, value_ranges)).insert()
    for spec, node in zip(program.exported.graph_signature.output_specs, program.output_nodes, strict=True):
        spec.arg.name = node.name
    program.exported.graph_module.recompile()
    return program
