"""Which integers the inputs of an ONNX model may be given: those that choose rows of a table choose from all rows
(`inputs`, rule 2). The model is canonical: inputs ``i0…``, weights external."""

from __future__ import annotations

import onnx

from trtbuild.errors import SourceError

#: Operators behind which an index is still the same index.
_SAME_INDEX = (
    "Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
)  # fmt: skip


def onnx_integer_ends(data: bytes, count: int) -> list[int]:
    """For each of the first `count` inputs one more than the largest integer that it may be given; 2 where no table says
    more. Raises SourceError for what is no ONNX model."""
    try:
        graph = onnx.ModelProto.FromString(data).graph
    except Exception as error:  # protobuf's own type, which differs between its versions
        raise SourceError(
            "what says what is right is neither a program of PyTorch's nor an ONNX model",
            code="verify",
            hint="build the package again",
        ) from error
    tables = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    return [_end(graph, f"i{number}", tables) for number in range(count)]


def _end(graph: onnx.GraphProto, name: str, tables: dict[str, list[int]]) -> int:
    same, sizes = {name}, []
    for node in graph.node:  # in topological order
        if node.op_type in _SAME_INDEX and node.input and node.input[0] in same:
            same.update(node.output)
        elif node.op_type in ("Gather", "GatherElements") and node.input[1] in same:
            axis = next((entry.i for entry in node.attribute if entry.name == "axis"), 0)
            table = tables.get(node.input[0])
            sizes.append(2 if table is None else table[axis])  # a size that is not known may be small
    return max(2, min(sizes)) if sizes else 2
