"""An ONNX model and its weights become a TensorRT network.

Rules
1. Weights never pass through protobuf (340 MB cost 3 to 7 s): the parser is given pointers.
2. TensorRT's objects hold pointers to one another and to the weights, not references. A `Parsed` keeps all of them, and
   lets them go in the order that TensorRT wants: parser, network, weights, and then (by who has them) builder and logger.
3. A network has a fixed name: the library's own ("Unnamed Network 7") counts up in a process, and is part of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtbuild.toolchain.element_types import TENSORRT_TYPES
from trtbuild.toolchain.library import Log
from trtbuild.toolchain.onnx_outline import Node, Outline, outline

NETWORK_NAME = "partition"

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True)
class NodeError:
    """Why the parser refused; `node` is the ONNX node's name, empty where it did not say."""

    text: str
    node: str


class Parsed:
    """A parsed network. Close it, and do not use `network` after."""

    def __init__(self, trt: Any, builder: Any, logger: Any, log: Log) -> None:
        self.network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        self.network.name = NETWORK_NAME
        self._log = log
        self._parser = trt.OnnxParser(self.network, logger)
        self._kept: list[Any] = []
        self._addresses: set[int] = set()

    def parse(self, model: bytes, weights: Mapping[str, Bytes]) -> list[NodeError]:
        """Parse `model` with the data of its external weights by name. Returns what the parser refused: empty is good.

        Raises KeyError for a missing weight, ValueError for one of the wrong size.
        """
        mark = self._log.mark()
        shape = outline(model)
        if not self._parser.load_model_proto(model):
            return self._refused(mark, shape)
        for weight in shape.weights:
            data = self._own(weights[weight.name])
            if data.nbytes != weight.size_bytes:
                raise ValueError(f"weight {weight.name} has {weight.size_bytes} bytes; {data.nbytes} were given")
            if not self._parser.load_initializer(weight.name, data.ctypes.data, data.nbytes):
                return self._refused(mark, shape)
        return [] if self._parser.parse_model_proto() else self._refused(mark, shape)

    def changed_types(self, shape: Outline) -> list[NodeError]:
        """Inputs and outputs whose element type the parser changed, by their nodes."""
        tensors = {t.name: t for t in map(self.network.get_input, range(self.network.num_inputs))}
        tensors |= {t.name: t for t in map(self.network.get_output, range(self.network.num_outputs))}
        found = []
        for name, element in (*shape.inputs, *shape.outputs):
            wanted = TENSORRT_TYPES.get(element, f"ONNX element type {element}")
            taken = str(tensors[name].dtype).rpartition(".")[2] if name in tensors else "nothing"
            if wanted != taken:
                text = f"{name} is {wanted} in the model and {taken} in the network"
                nodes = [node.name for node in shape.nodes if name in node.inputs or name in node.outputs]
                found += [NodeError(text, node) for node in nodes or [""]]
        return found

    def _own(self, data: Bytes) -> Any:
        """`data` at an address that no other weight of the network has: TensorRT takes equal addresses for one weight,
        and refuses it where sizes differ (INetworkDefinition::setWeightsName). Kept until the network is closed."""
        array = np.frombuffer(data, dtype=np.uint8)
        if array.ctypes.data in self._addresses or not array.nbytes:
            array = np.concatenate([array, np.zeros(1, np.uint8)])[: array.nbytes]
        self._addresses.add(array.ctypes.data)
        self._kept.append(array)
        return array

    def supported(self, model: bytes, path: str) -> tuple[list[list[int]], list[NodeError]]:
        """`supports_model_v2`: the pieces that the parser would take, as node indexes, and what it said of the rest.

        External data is looked for beside `path`. Afterwards the network is of no use.
        """
        mark = self._log.mark()
        shape = outline(model)
        self._parser.supports_model_v2(model, path)
        pieces = [list(self._parser.get_subgraph_nodes(index)) for index in range(self._parser.num_subgraphs)]
        return pieces, self._errors(mark, shape.nodes)

    def _refused(self, mark: int, shape: Outline) -> list[NodeError]:
        return self._errors(mark, shape.nodes) or [NodeError("refused, and no reason was given", "")]

    def _errors(self, mark: int, nodes: Sequence[Node]) -> list[NodeError]:
        found = []
        for index in range(self._parser.num_errors):
            error = self._parser.get_error(index)
            node = error.node_name()
            if not node and 0 <= error.node() < len(nodes):
                node = nodes[error.node()].name
            operator = error.node_operator()
            code = str(error.code()).rpartition(".")[2]
            text = f"{operator or 'model'}: {code}: {error.desc()}"
            found.append(NodeError(text, node))
        return found or [NodeError(text, "") for text in self._log.errors(mark)]

    def close(self) -> None:
        """Let go of the parser, then the network, then the weights."""
        del self._parser
        del self.network
        self._kept.clear()

    def __enter__(self) -> Parsed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
