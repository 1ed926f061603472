"""Apply a precision to a program, as a change of its graph.

TensorRT 11 has no precision flags: a network is strongly typed, and computes in the dtypes of its graph. So the lower
step chooses the dtypes, in three modules:

1. `ranges` finds the values that half (float16 or bfloat16) possibly cannot represent. It goes through the graph from the
   inputs to the outputs.
2. `dtypes` decides which operators compute in half, by the table of `operators`. It goes through the graph
   backward, then forward.
3. `casts` inserts the casts.

A model may have several precisions: each operator has the precision of its module. Operators that the table keeps in
float32 stay in float32 in every module. Inputs and outputs have the same dtypes as in eager PyTorch. Weights stay in the
dtype in which they are stored, so a program's weights table is the same in every precision. Nested graphs
(``torch.cond``) stay in float32, with casts of their inputs and outputs. ``float32`` alone changes nothing.
"""

from __future__ import annotations

import torch

from trtbuild.core.model.precisions import Precisions
from trtbuild.stages.lower.half_precision.casts import CastInserter
from trtbuild.stages.lower.half_precision.dtypes import Dtypes, decide_dtypes
from trtbuild.stages.lower.half_precision.ranges import find_ranges
from trtbuild.stages.lower.modules import path_of
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def apply_precision(program: Program, request: Request) -> Program:
    """Change `program` in place to compute in the precisions of `request`."""
    if request.precisions.names == ("float32",):
        return program
    CastInserter(program.graph, decide(program, request.precisions)).insert()
    for spec, node in zip(program.exported.graph_signature.output_specs, program.output_nodes, strict=True):
        spec.arg.name = node.name
    program.exported.graph_module.recompile()
    return program


def decide(program: Program, precisions: Precisions) -> Dtypes:
    """Decide in which dtype each node of `program` computes."""
    constants = program.constants
    weights_and_constants = {
        *program.weight_nodes,
        *(node for node in program.placeholders if node.name in constants),
    }
    weights_and_constants |= {node for node in program.graph.nodes if node.op == "get_attr"}
    requested = {
        node: _DTYPES[precisions.of(path_of(node))] for node in program.graph.nodes if node.op == "call_function"
    }
    ranges = {
        _DTYPES[name]: find_ranges(program.graph, constants, _DTYPES[name])
        for name in precisions.names
        if name != "float32"
    }
    return decide_dtypes(program.graph, weights_and_constants, _DTYPES[precisions.default], requested, ranges)
