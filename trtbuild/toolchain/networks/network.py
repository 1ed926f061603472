"""An ONNX model and its weights become a TensorRT network.

Rules
1. Weights never pass through protobuf (340 MB cost 3 to 7 s): the parser is given pointers. Parsers older than that
   (TensorRT before 10.13) read them from files beside the model, which is what the model says of them.
2. TensorRT's objects hold pointers to one another and to the weights, not references. A `Parsed` keeps all of them, and
   lets them go in the order that TensorRT wants: parser, network, weights, and then (by who has them) builder and logger.
3. A network has a fixed name: the library's own ("Unnamed Network 7") counts up in a process, and is part of the plan.
4. What a network and its parser are created with stands in `trtbuild.toolchain.libraries.releases`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtbuild.toolchain.libraries.library import Log
from trtbuild.toolchain.libraries.releases import Release
from trtbuild.toolchain.onnx_files.element_types import TENSORRT_TYPES
from trtbuild.toolchain.onnx_files.onnx_outline import Bytes, ExternalWeight, Node, Outline, outline

NETWORK_NAME = "partition"


@dataclass(frozen=True)
class NodeError:
    """Why the parser refused; `node` is the ONNX node's name, empty where it did not say."""

    text: str
    node: str


def create_network(trt: Any, builder: Any, release: Release) -> Any:
    """An empty INetworkDefinition of the kind and name that all are built from (rules 3 and 4)."""
    flags = (getattr(trt.NetworkDefinitionCreationFlag, name) for name in release.network_flags)
    network = builder.create_network(sum(1 << int(flag) for flag in flags))
    network.name = NETWORK_NAME
    return network


class Parsed:
    """A parsed network. Close it, and do not use `network` after."""

    def __init__(self, trt: Any, builder: Any, logger: Any, log: Log, release: Release) -> None:
        self.network = create_network(trt, builder, release)
        self._log = log
        self._parser = trt.OnnxParser(self.network, logger)
        for name in release.parser_flags:
            self._parser.set_flag(getattr(trt.OnnxParserFlag, name))
        self._kept: list[Any] = []
        self._addresses: set[int] = set()

    def parse(self, model: bytes, weights: Mapping[str, Bytes]) -> list[NodeError]:
        """Parse `model` with the data of its external weights by name. Returns what the parser refused: empty is good.

        Raises KeyError for a missing weight, ValueError for one of the wrong size.
        """
        mark = self._log.mark()
        shape = outline(model)
        if not hasattr(self._parser, "load_model_proto"):
            return self._parse_with_files(model, shape, weights, mark)
        if not self._parser.load_model_proto(model):
            return self._refused(mark, shape)
        for weight in shape.weights:
            data = self._own(weights[weight.name])
            if data.nbytes != weight.size_bytes:
                raise ValueError(f"weight {weight.name} has {weight.size_bytes} bytes; {data.nbytes} were given")
            if not self._parser.load_initializer(weight.name, data.ctypes.data, data.nbytes):
                return self._refused(mark, shape)
        return [] if self._parser.parse_model_proto() else self._refused(mark, shape)

    def _parse_with_files(
        self, model: bytes, shape: Outline, weights: Mapping[str, Bytes], mark: int
    ) -> list[NodeError]:
        with tempfile.TemporaryDirectory(prefix="trtbuild-parse-") as folder:
            for weight in shape.weights:
                with open(os.path.join(folder, weight.name), "wb") as file:
                    written = file.write(weights[weight.name])
                if written != weight.size_bytes:
                    raise ValueError(f"weight {weight.name} has {weight.size_bytes} bytes; {written} were given")
            return [] if self._parser.parse(model, os.path.join(folder, "model.onnx")) else self._refused(mark, shape)

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

    def supported(self, model: bytes) -> tuple[list[list[int]], list[NodeError]]:
        """`supports_model_v2`: the pieces that the parser would take, as node indexes, and what it said of the rest.

        Weights are taken to be zero. Afterwards the network is of no use.
        """
        mark = self._log.mark()
        shape = outline(model)
        with tempfile.TemporaryDirectory(prefix="trtbuild-parse-") as folder:
            _empty_files(folder, shape.weights)
            path = os.path.join(folder, "model.onnx")
            if hasattr(self._parser, "supports_model_v2"):
                self._parser.supports_model_v2(model, path)
                pieces = [list(self._parser.get_subgraph_nodes(index)) for index in range(self._parser.num_subgraphs)]
            else:
                pieces = [list(nodes) for nodes, taken in self._parser.supports_model(model, path)[1] if taken]
        return pieces, self._errors(mark, shape.nodes)

    def _refused(self, mark: int, shape: Outline) -> list[NodeError]:
        return self._errors(mark, shape.nodes) or [NodeError("refused, and no reason was given", "")]

    def _errors(self, mark: int, nodes: Sequence[Node]) -> list[NodeError]:
        found = []
        for index in range(self._parser.num_errors):
            error = self._parser.get_error(index)
            at = nodes[error.node()] if 0 <= error.node() < len(nodes) else None
            # TensorRT 8.6 tells a node by its number alone
            node = error.node_name() if hasattr(error, "node_name") else ""
            node = node or (at.name if at is not None else "")
            operator = (
                error.node_operator() if hasattr(error, "node_operator") else at.operator if at is not None else ""
            )
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


def _empty_files(folder: str, weights: Sequence[ExternalWeight]) -> None:
    """A sparse file of zeros for each weight."""
    for weight in weights:
        with open(os.path.join(folder, weight.name), "wb") as file:
            file.truncate(weight.size_bytes)
