"""Compute the results of each step for ONNX models and TensorRT networks, with one handler for each kind of graph.

Rules
1. The six steps and their keys are the same as for other models. Lower passes on the result of the trace, partition
   asks the parser about the whole model, and convert passes on the model in the toolchain's opset. So plans, verdicts
   and records are the same, too.
2. There is one TensorRT partition, called ``model``. A node that the parser rejects cannot stay in PyTorch. So this is an
   error, with the node's name in the user's file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trtbuild.core.model.graph_kinds import NETWORK, ONNX
from trtbuild.core.partition.partitions import Partition, Partitions, TensorType
from trtbuild.errors import ConversionRefused
from trtbuild.stages.graphs import network, onnx_model

#: Name of the one partition (`trtbuild.stages.partition.naming`, rule 1).
NAME = "model"


class Refused(Protocol):
    """A parser's refusal of a model: names of nodes, and reasons."""

    @property
    def nodes(self) -> tuple[str, ...]: ...

    @property
    def messages(self) -> tuple[str, ...]: ...


#: Asks the toolchain's parser about a canonical model; None if the parser accepts it.
Ask = Callable[[bytes], "Refused | None"]


@dataclass(frozen=True)
class Cut:
    """The document of a model's one partition, and that partition's model: the input of the engine step."""

    document: Partitions
    graph: str
    model: bytes


@dataclass(frozen=True)
class GraphHandler:
    """The functions that the steps call for graphs of one kind. `blob` makes the blob that a trace stores. The other
    functions take this blob, except `origins`.

    `text` returns the graph text for keys. `names` returns for each node: the user's name, the operator, and an empty
    text. `cut` makes the partition for an opset, and asks a parser.
    """

    blob: Callable[..., bytes]
    text: Callable[[bytes], str]
    names: Callable[[bytes], list[tuple[str, str, str]]]
    cut: Callable[[bytes, int, Ask], Cut]
    #: For a partition's model: (name, number) of its nodes; the number is the one in `Partition.calls`.
    origins: Callable[[bytes], list[tuple[str, int]]]


def one_partition(
    model: bytes, weights: int, inputs: Sequence[TensorType], outputs: Sequence[TensorType], calls: tuple[int, ...]
) -> Cut:
    """Make the whole model one partition. Equal models have equal graph digests."""
    graph = hashlib.sha256(model).hexdigest()
    partition = Partition(
        name=NAME,
        kind="tensorrt",
        graph=graph,
        weights=tuple(range(weights)),
        inputs=tuple((f"input:{number}", type_) for number, type_ in enumerate(inputs)),
        outputs=tuple(outputs),
        calls=calls,
    )
    return Cut(Partitions((partition,), tuple(f"{NAME}:{number}" for number in range(len(outputs)))), graph, model)


def _cut_onnx(blob: bytes, opset: int, ask: Ask) -> Cut:
    model, calls = onnx_model.for_opset(blob, opset)
    refusal = ask(model)
    if refusal is not None:
        raise ConversionRefused(
            _refusal_text(refusal, model, blob, calls), hint="export the model without these operators"
        )
    types = onnx_model.types(blob)
    return one_partition(model, types.weights, types.inputs, types.outputs, calls)


def _refusal_text(refusal: Refused, model: bytes, blob: bytes, calls: Sequence[int]) -> str:
    """The reason of a refusal, with the user's names of nodes."""
    user_names = onnx_model.node_names(blob)
    node_names = [name for name, _ in onnx_model.origins(model)]
    shown_names = {name: user_names[call][0] for name, call in zip(node_names, calls, strict=True) if call >= 0}
    nodes = ", ".join(repr(shown_names.get(node, node)) for node in refusal.nodes)
    reasons = "; ".join(
        f"{shown_names.get(head, head)}: {rest}" if head in node_names and rest else text
        for text in refusal.messages
        for head, _, rest in [text.partition(": ")]
    )
    return f"the toolchain's ONNX parser refuses {f'node {nodes}' if nodes else 'the model'}: {reasons}"


def _cut_network(blob: bytes, opset: int, ask: Ask) -> Cut:
    """Make the partition without a parser: the engine step replays the recorded network."""
    model, (inputs, outputs, weights) = network.document(blob), network.types(blob)
    return one_partition(model, weights, inputs, outputs, tuple(number for _, number in network.origins(model)))


#: Graphs that are lowered have no handler: `trtbuild.stages.lower`, `partition` and `convert` process them.
HANDLERS: Mapping[str, GraphHandler] = {
    ONNX.name: GraphHandler(
        onnx_model.blob, onnx_model.graph_text, onnx_model.node_names, _cut_onnx, onnx_model.origins
    ),
    NETWORK.name: GraphHandler(network.blob, network.graph_text, network.layer_names, _cut_network, network.origins),
}
