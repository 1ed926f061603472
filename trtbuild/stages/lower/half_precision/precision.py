"""Apply the precisions of a model's modules to its program.

TensorRT 11 has no precision flags: a network computes in the dtypes of its graph. So the lower step chooses the dtypes, in
three files:

1. `ranges` finds the values that half (float16 or bfloat16) may not be able to represent.
2. `dtypes` decides which operators compute in half, by the table in `operators`.
3. `casts` inserts the casts.

Each operator has the precision of its module, but some operators stay in float32 in every module. The model's inputs and
outputs keep their dtypes. Weights stay in the dtype in which they are stored, so their digests are the same in every
precision. Nested graphs (``torch.cond``) stay in float32, with casts of their inputs and outputs.
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
    if request.precisions.names == ("float32",):
        return program
    CastInserter(program.graph, decide(program, request.precisions)).insert()
    program.rename_outputs()
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
        _DTYPES[name]: find_ranges(program.graph, weights_and_constants, constants, _DTYPES[name])
        for name in precisions.names
        if name != "float32"
    }
    return decide_dtypes(program.graph, weights_and_constants, _DTYPES[precisions.default], requested, ranges)
