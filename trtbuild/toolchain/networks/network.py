"""Parse an ONNX model and its weights into a TensorRT network.

Rules
1. The parser gets pointers to the weights. With 340 MB of weights inside the model, protobuf would take 3 to 7 s. Parsers
   before TensorRT 10.13 read the weights from the files that the model names.
2. TensorRT's objects have pointers to one another and to the weights, but Python does not know these pointers. So a
   `ParsedNetwork` frees its parser, its network and its weights in this order, which TensorRT needs. After that, the caller
   frees the builder and the logger.
3. A network has a fixed name. The default name ("Unnamed Network 7") contains a counter of the process, which would enter
   the engine.
4. The flags of networks and parsers come from `trtbuild.toolchain.libraries.releases`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtbuild.core.values.element_types import ELEMENT_TYPES, ENGINE_TYPES
from trtbuild.toolchain.libraries.library import Log
from trtbuild.toolchain.libraries.releases import Release
from trtbuild.toolchain.onnx_files.onnx_outline import Bytes, ExternalWeight, Node, Outline, read_outline

NETWORK_NAME = "partition"
#: onnx.TensorProto.DataType → tensorrt.DataType, for the types of inputs and outputs.
_TENSORRT_TYPES = {ELEMENT_TYPES[name].onnx: ELEMENT_TYPES[name].tensorrt for name in ENGINE_TYPES}


@dataclass(frozen=True)
class NodeError:
    """A reason why a model is refused. `node` is the name of the ONNX node, or empty if it is not known."""

    text: str
    node: str


def create_network(trt: Any, builder: Any, release: Release) -> Any:
    """Create an empty INetworkDefinition (rules 3 and 4)."""
    flags = (getattr(trt.NetworkDefinitionCreationFlag, name) for name in release.network_flags)
    network = builder.create_network(sum(1 << int(flag) for flag in flags))
    network.name = NETWORK_NAME
    return network


class ParsedNetwork:
    """A parsed network. After `close`, do not use `network`."""

    def __init__(self, trt: Any, builder: Any, logger: Any, log: Log, release: Release) -> None:
        self.network = create_network(trt, builder, release)
        self._log = log
        self._parser = trt.OnnxParser(self.network, logger)
        for name in release.parser_flags:
            self._parser.set_flag(getattr(trt.OnnxParserFlag, name))
        self._weights: list[Any] = []
        self._addresses: set[int] = set()

    def parse(self, model: bytes, weights: Mapping[str, Bytes]) -> list[NodeError]:
        """Parse `model`. Returns the reasons why the parser refuses it, or an empty list if it accepts it.
        `weights`: name of an external weight → its data.

        Raises KeyError for a missing weight, ValueError for a weight of the wrong size.
        """
        lines_before = self._log.line_count()
        model_outline = read_outline(model)
        if not hasattr(self._parser, "load_model_proto"):
            return self._parse_with_files(model, model_outline, weights, lines_before)
        if not self._parser.load_model_proto(model):
            return self._refusals(lines_before, model_outline)
        for weight in model_outline.weights:
            data = self._at_unique_address(weights[weight.name])
            if data.nbytes != weight.size_bytes:
                raise ValueError(f"weight {weight.name} has {weight.size_bytes} bytes; {data.nbytes} were given")
            if not self._parser.load_initializer(weight.name, data.ctypes.data, data.nbytes):
                return self._refusals(lines_before, model_outline)
        return [] if self._parser.parse_model_proto() else self._refusals(lines_before, model_outline)

    def _parse_with_files(
        self, model: bytes, model_outline: Outline, weights: Mapping[str, Bytes], lines_before: int
    ) -> list[NodeError]:
        with tempfile.TemporaryDirectory(prefix="trtbuild-parse-") as folder:
            for weight in model_outline.weights:
                with open(os.path.join(folder, weight.name), "wb") as file:
                    written = file.write(weights[weight.name])
                if written != weight.size_bytes:
                    raise ValueError(f"weight {weight.name} has {weight.size_bytes} bytes; {written} were given")
            return (
                []
                if self._parser.parse(model, os.path.join(folder, "model.onnx"))
                else self._refusals(lines_before, model_outline)
            )

    def changed_types(self, model_outline: Outline) -> list[NodeError]:
        """List the inputs and outputs whose element type the parser has changed, with the nodes that read or write them."""
        tensors = {tensor.name: tensor for tensor in map(self.network.get_input, range(self.network.num_inputs))}
        tensors |= {tensor.name: tensor for tensor in map(self.network.get_output, range(self.network.num_outputs))}
        errors = []
        for name, element in (*model_outline.inputs, *model_outline.outputs):
            declared = _TENSORRT_TYPES.get(element, f"ONNX element type {element}")
            actual = str(tensors[name].dtype).rpartition(".")[2] if name in tensors else "nothing"
            if declared != actual:
                text = f"{name} is {declared} in the model and {actual} in the network"
                nodes = [node.name for node in model_outline.nodes if name in node.inputs or name in node.outputs]
                errors += [NodeError(text, node) for node in nodes or [""]]
        return errors

    def _at_unique_address(self, data: Bytes) -> Any:
        """Return `data` as an array that is not freed before the network is closed. No other weight of the network has the
        same address, because TensorRT treats weights at one address as one weight, and refuses them if their sizes differ
        (INetworkDefinition::setWeightsName)."""
        array = np.frombuffer(data, dtype=np.uint8)
        if array.ctypes.data in self._addresses or not array.nbytes:  # empty arrays may share an address
            array = np.concatenate([array, np.zeros(1, np.uint8)])[: array.nbytes]
        self._addresses.add(array.ctypes.data)
        self._weights.append(array)
        return array

    def supported_pieces(
        self, model: bytes, quantizer_scales: Mapping[str, memoryview]
    ) -> tuple[list[list[int]], list[NodeError]]:
        """Ask the parser which pieces of `model` it would accept (`supports_model_v2`, in older releases `supports_model`).
        Returns the node indexes of each piece, and the parser's errors.

        `quantizer_scales` maps the names of scales to their values. The parser reads zeros in place of the other weights.
        Afterwards the network cannot be used.
        """
        lines_before = self._log.line_count()
        model_outline = read_outline(model)
        with tempfile.TemporaryDirectory(prefix="trtbuild-parse-") as folder:
            _write_weight_files(folder, model_outline.weights, quantizer_scales)
            path = os.path.join(folder, "model.onnx")
            if hasattr(self._parser, "supports_model_v2"):
                self._parser.supports_model_v2(model, path)
                pieces = [list(self._parser.get_subgraph_nodes(index)) for index in range(self._parser.num_subgraphs)]
            else:
                # the flag beside the nodes is ignored: it says whether the parser accepts the whole model (TensorRT 8.6)
                pieces = [list(nodes) for nodes, _ in self._parser.supports_model(model, path)[1]]
        return pieces, self._node_errors(lines_before, model_outline.nodes)

    def _refusals(self, lines_before: int, model_outline: Outline) -> list[NodeError]:
        """The errors of a parse. A parse ends at the first error, so an error without a node belongs to the node that the
        parser was parsing."""
        name = self._log.parsed_node
        parsed = next((node for node in model_outline.nodes if name and node.name == name), None)
        return self._node_errors(lines_before, model_outline.nodes, parsed) or [
            NodeError("refused, and no reason was given", "")
        ]

    def _node_errors(self, lines_before: int, nodes: Sequence[Node], default: Node | None = None) -> list[NodeError]:
        """Return the parser's errors, or if the parser reports no error, the errors in the log after `lines_before` lines.
        `default` is the node of an error that names no node."""
        errors = []
        for index in range(self._parser.num_errors):
            error = self._parser.get_error(index)
            node = nodes[error.node()] if 0 <= error.node() < len(nodes) else default
            name, operator = ("", "") if node is None else (node.name, node.operator)
            if hasattr(error, "node_name"):  # TensorRT 8.6 has only the number of a node
                name = error.node_name() or name
            if hasattr(error, "node_operator"):
                operator = error.node_operator() or operator
            code = str(error.code()).rpartition(".")[2]
            text = f"{operator or 'model'}: {code}: {error.desc()}"
            errors.append(NodeError(text, name))
        return errors or [NodeError(text, "") for text in self._log.errors(lines_before)]

    def close(self) -> None:
        """Free the objects in the order of rule 2."""
        del self._parser
        del self.network
        self._weights.clear()

    def __enter__(self) -> ParsedNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _write_weight_files(folder: str, weights: Sequence[ExternalWeight], values: Mapping[str, memoryview]) -> None:
    """Write a file for each weight. A weight without `values` gets a sparse file of zeros."""
    for weight in weights:
        with open(os.path.join(folder, weight.name), "wb") as file:
            file.write(values.get(weight.name, b""))
            file.truncate(weight.size_bytes)
