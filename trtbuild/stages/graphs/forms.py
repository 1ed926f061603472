"""Models that need no lowering and are one partition: what each step leaves of them, by form.

Rules
1. The six steps stay as they are, with their keys; for such a model lower hands on what the trace left, partition asks the
   parser about the whole, and convert hands on the model in the toolchain's form. So plans, verdicts and records are alike.
2. There is one TensorRT partition, called ``model``. What the parser refuses of it is an error that names the node as the
   user's file names it: there is no PyTorch for it to stay in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from trtbuild.core.partition.partitions import Partition, Partitions, TensorType
from trtbuild.errors import ConversionRefused
from trtbuild.stages.graphs import network, onnx_model

#: Name of the one partition (`trtbuild.stages.partition.naming`, rule 1).
NAME = "model"


class Refused(Protocol):
    """What a parser says that does not take a model: names of its nodes, and why."""

    @property
    def nodes(self) -> tuple[str, ...]: ...

    @property
    def messages(self) -> tuple[str, ...]: ...


#: Asks the toolchain's parser about a canonical model; None where it takes it.
Ask = Callable[[bytes], "Refused | None"]


@dataclass(frozen=True)
class Cut:
    """The document of a model's one partition, and that partition's model: what the engine step is given."""

    document: Partitions
    graph: str
    model: bytes


@dataclass(frozen=True)
class Form:
    """A form of models. Each function takes the blob that the trace left.

    `text` is what stands for its graph in keys; `names` are for each of its nodes the user's name of it, its operator, and
    nothing; `cut` makes the partition for an opset, asking a parser.
    """

    text: Callable[[bytes], str]
    names: Callable[[bytes], list[tuple[str, str, str]]]
    cut: Callable[[bytes, int, Ask], Cut]
    #: For the model of a partition: names of its nodes, and for each the number that `Partition.calls` has it under.
    origins: Callable[[bytes], list[tuple[str, int]]]


def one_partition(
    model: bytes, weights: int, inputs: Sequence[TensorType], outputs: Sequence[TensorType], calls: tuple[int, ...]
) -> Cut:
    """The whole model as one partition. Equal models are equal graphs."""
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
        raise ConversionRefused(_said(refusal, model, blob, calls), hint="export the model without these operators")
    types = onnx_model.types(blob)
    return one_partition(model, types.weights, types.inputs, types.outputs, calls)


def _said(refusal: Refused, model: bytes, blob: bytes, calls: Sequence[int]) -> str:
    """Why the model is refused, with the user's names of nodes."""
    theirs = onnx_model.node_names(blob)
    own = [name for name, _ in onnx_model.origins(model)]
    called = {name: theirs[call][0] for name, call in zip(own, calls, strict=True) if call >= 0}
    nodes = ", ".join(repr(called.get(node, node)) for node in refusal.nodes)
    reasons = "; ".join(
        f"{called.get(head, head)}: {rest}" if head in own and rest else text
        for text in refusal.messages
        for head, _, rest in [text.partition(": ")]
    )
    return f"the toolchain's ONNX parser does not take {f'node {nodes}' if nodes else 'the model'}: {reasons}"


def _cut_network(blob: bytes, opset: int, ask: Ask) -> Cut:
    """No parser is asked: the engine step defines it as it was recorded."""
    model, (inputs, outputs, weights) = network.document(blob), network.types(blob)
    return one_partition(model, weights, inputs, outputs, tuple(number for _, number in network.origins(model)))


FORMS = {
    "onnx": Form(onnx_model.graph_text, onnx_model.node_names, _cut_onnx, onnx_model.origins),
    "network": Form(network.graph_text, network.layer_names, _cut_network, network.origins),
}
