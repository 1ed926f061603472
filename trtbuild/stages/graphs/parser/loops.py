"""Refuse recurrent operators and loops that TensorRT's parser does not read as ONNX defines them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from trtbuild.errors import ConversionRefused
from trtbuild.stages.graphs.parser.graph import ModelFacts, attribute_of


def refuse_batch_first(node: onnx.NodeProto, facts: ModelFacts) -> Iterator[onnx.NodeProto]:
    """Refuse ``layout=1``. The parser ignores it, and reads the axis of the batch as that of the sequence."""
    if attribute_of(node, "layout", 0):
        raise ConversionRefused(
            f"{node.op_type} has layout=1, which TensorRT's parser ignores",
            hint="export the model with layout=0, and transpose the operands",
        )
    yield node


def refuse_early_end(node: onnx.NodeProto, facts: ModelFacts) -> Iterator[onnx.NodeProto]:
    """Refuse a Loop with scan outputs if its condition may end it. The parser's scan outputs have a row for each of the `M`
    iterations, also for those that do not run. In ONNX they have fewer rows."""
    if _may_end_early(node, facts):
        raise ConversionRefused(
            "Loop has scan outputs and a condition: TensorRT's outputs have a row for each iteration up to M",
            hint="let the loop run M times, or return its carried values only",
        )
    yield node


def _may_end_early(node: onnx.NodeProto, facts: ModelFacts) -> bool:
    """Whether a condition may end a Loop with scan outputs. A Loop without a condition runs `M` times."""
    if len(node.input) < 2 or not node.input[1] or not any(node.output[len(node.input) - 2 :]):
        return False
    body = next(attribute.g for attribute in node.attribute if attribute.name == "body")
    sources = {
        name: inner.input[0] for inner in body.node if inner.op_type in ("Cast", "Identity") for name in inner.output
    }
    condition = body.output[0].name
    while condition in sources:
        condition = sources[condition]
    # If the body returns the condition that it got, the loop's first condition decides. The last line tests it.
    is_kept_true = condition == body.input[1].name or bool(facts.numbers.get(condition, False))
    return not is_kept_true or not facts.numbers.get(node.input[1], False)
