"""Find the integers that the inputs of an ONNX model may contain (`verify.inputs`, rule 2).

The model is the result of a convert step: its inputs are called ``i0``, ``i1`` …, and its weights are external.
"""

from __future__ import annotations

import onnx

from trtbuild.errors import SourceError

#: Operators that do not change the values of an index.
_SAME_INDEX = (
    "Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
)  # fmt: skip


def onnx_integer_ends(data: bytes, count: int) -> list[int]:
    """Return, for each of the first `count` inputs, the smallest integer that is too large; 2 if it indexes no table.

    Raises SourceError if the data are not an ONNX model."""
    try:
        graph = onnx.ModelProto.FromString(data).graph
    except Exception as error:  # protobuf's own type, which differs between its versions
        raise SourceError(
            "the reference of the comparison is neither a PyTorch program nor an ONNX model",
            code="verify",
            hint="build the package again",
        ) from error
    tables = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    return [_integer_end(graph, f"i{number}", tables) for number in range(count)]


def _integer_end(graph: onnx.GraphProto, name: str, tables: dict[str, list[int]]) -> int:
    index_names, sizes = {name}, []
    for node in graph.node:  # in topological order
        if node.op_type in _SAME_INDEX and node.input and node.input[0] in index_names:
            index_names.update(node.output)
        elif node.op_type in ("Gather", "GatherElements") and node.input[1] in index_names:
            axis = next((entry.i for entry in node.attribute if entry.name == "axis"), 0)
            table = tables.get(node.input[0])
            sizes.append(2 if table is None else table[axis])  # an unknown size may be small
    return max(2, min(sizes)) if sizes else 2
