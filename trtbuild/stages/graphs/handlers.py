"""The steps from trace to convert for ONNX models and TensorRT networks, with one handler for each kind of graph.

Rules
1. There are the same six steps as for other models, so plans, keys and records have the same form. Lower and convert
   return their input unchanged. For an ONNX model, partition writes the model for the toolchain's parser
   (`onnx_model`, rules 3 and 4), and asks the parser about it.
2. There is one TensorRT partition, called ``model``. A node that the parser rejects is an error, because the node cannot
   stay in PyTorch. The error has the node's name in the user's file.
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

#: Name of the only partition (`trtbuild.stages.partition.naming`, rule 1).
PARTITION_NAME = "model"


class ParserRefusal(Protocol):
    """A parser's refusal of a model: the names of the rejected nodes, and the reasons."""

    @property
    def nodes(self) -> tuple[str, ...]: ...

    @property
    def messages(self) -> tuple[str, ...]: ...


#: Asks the toolchain's parser about a canonical model. Returns None if the parser accepts the model.
AskParser = Callable[[bytes], "ParserRefusal | None"]


@dataclass(frozen=True)
class ModelPartition:
    """The only partition of a model."""

    document: Partitions
    graph: str  # the digest of `model`
    model: bytes  # the ONNX model, or the network's document


@dataclass(frozen=True)
class GraphHandler:
    """The functions that the steps call for graphs of one kind. Three of them take the blob that a trace has stored."""

    #: Returns the blob that the trace stores.
    make_blob: Callable[..., bytes]
    #: Blob → the graph text. Keys contain its digest.
    graph_text: Callable[[bytes], str]
    #: Blob → (the user's name, operator, "") of each node. For other models, the third entry names modules.
    node_names: Callable[[bytes], list[tuple[str, str, str]]]
    #: Blob, opset of the toolchain, parser → the partition.
    make_partition: Callable[[bytes, int, AskParser], ModelPartition]
    #: Model of a partition → (name, index in `Partition.calls`) of each node.
    origins: Callable[[bytes], list[tuple[str, int]]]


def one_partition(
    model: bytes, weights: int, inputs: Sequence[TensorType], outputs: Sequence[TensorType], calls: tuple[int, ...]
) -> ModelPartition:
    """Return the partition that contains the whole model. `weights` is the number of weights."""
    graph = hashlib.sha256(model).hexdigest()
    partition = Partition(
        name=PARTITION_NAME,
        kind="tensorrt",
        graph=graph,
        weights=tuple(range(weights)),
        inputs=tuple((f"input:{number}", type_) for number, type_ in enumerate(inputs)),
        outputs=tuple(outputs),
        calls=calls,
    )
    returned = tuple(f"{PARTITION_NAME}:{number}" for number in range(len(outputs)))
    return ModelPartition(Partitions((partition,), returned), graph, model)


def _make_onnx_partition(blob: bytes, opset: int, ask: AskParser) -> ModelPartition:
    model, calls = onnx_model.convert_to_opset(blob, opset)
    refusal = ask(model)
    if refusal is not None:
        raise ConversionRefused(
            _refusal_text(refusal, model, blob, calls), hint="export the model without these operators"
        )
    types = onnx_model.types(blob)
    return one_partition(model, types.weights, types.inputs, types.outputs, calls)


def _refusal_text(refusal: ParserRefusal, model: bytes, blob: bytes, calls: Sequence[int]) -> str:
    """The text of the error for a refusal, with the names that the nodes have in the user's file."""
    user_names = onnx_model.node_names(blob)
    node_names = [name for name, _ in onnx_model.origins(model)]
    names_in_message = {name: user_names[call][0] for name, call in zip(node_names, calls, strict=True) if call >= 0}
    nodes = ", ".join(repr(names_in_message.get(node, node)) for node in refusal.nodes)
    reasons = "; ".join(
        f"{names_in_message.get(head, head)}: {rest}" if head in node_names and rest else text
        for text in refusal.messages
        for head, _, rest in [text.partition(": ")]
    )
    return f"the toolchain's ONNX parser refuses {f'node {nodes}' if nodes else 'the model'}: {reasons}"


def _make_network_partition(blob: bytes, opset: int, ask: AskParser) -> ModelPartition:
    """Make the partition without a parser: the engine step replays the recorded network."""
    model, (inputs, outputs, weights) = network.document(blob), network.types(blob)
    return one_partition(model, weights, inputs, outputs, tuple(number for _, number in network.origins(model)))


#: Programs have no handler: `trtbuild.stages.lower`, `partition` and `convert` process them.
HANDLERS: Mapping[str, GraphHandler] = {
    ONNX.name: GraphHandler(
        onnx_model.blob, onnx_model.graph_text, onnx_model.node_names, _make_onnx_partition, onnx_model.origins
    ),
    NETWORK.name: GraphHandler(
        network.blob, network.graph_text, network.layer_names, _make_network_partition, network.origins
    ),
}
