"""Read the plugins of a serialized ONNX model, and the declared types of their results.

The field numbers are from onnx.proto, and never change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtbuild.core.model.plugins import NAMESPACE_ATTRIBUTE, ONNX_DOMAIN, VERSION_ATTRIBUTE, plugin_text
from trtbuild.toolchain.onnx_files.onnx_outline import (
    GRAPH_NODE,
    MODEL_GRAPH,
    NODE_ATTRIBUTE,
    NODE_NAME,
    NODE_OPERATOR,
    NODE_OUTPUT,
)
from trtbuild.toolchain.onnx_files.protobuf import fields, messages

_NODE_DOMAIN, _GRAPH_OUTPUT, _GRAPH_VALUE = 7, 12, 13
_NAME, _ATTRIBUTE_TEXT = 1, 4
_VALUE_TYPE, _TYPE_TENSOR, _ELEMENT, _SHAPE, _DIM, _DIM_VALUE = 2, 1, 1, 2, 1, 1


#: The name of a result, its element type (TensorProto.DataType) and its sizes. A dynamic size is None.
DeclaredResult = tuple[str, int, tuple[int | None, ...]]


@dataclass(frozen=True)
class PluginNode:
    """A node that calls a plugin. `node` is the node's name. `results` are those of its results that the model declares.

    `plugin`, `version` and `namespace` identify the plugin in TensorRT's registry.
    """

    node: str
    plugin: str
    version: str
    namespace: str
    results: tuple[DeclaredResult, ...] = ()

    @property
    def identity(self) -> tuple[str, str, str]:
        """The plugin in TensorRT's registry: name, version and namespace."""
        return self.plugin, self.version, self.namespace

    @property
    def text(self) -> str:
        """The text that messages show for the plugin."""
        return plugin_text(*self.identity)


def read_plugins(model: bytes) -> tuple[PluginNode, ...]:
    """The plugins in the outer graph of `model`, in graph order.

    Empty if the bytes do not contain `ONNX_DOMAIN`. Otherwise raises ValueError if they are not a protobuf message."""
    if ONNX_DOMAIN.encode() not in model:
        return ()
    graph = next((part for field, part in messages(memoryview(model)) if field == MODEL_GRAPH), memoryview(b""))
    declared: dict[str, DeclaredResult] = {}
    for field, part in messages(graph):
        if field in (_GRAPH_OUTPUT, _GRAPH_VALUE):
            result = _declared_result(part)
            declared[result[0]] = result
    nodes = (_plugin_node(part, declared) for field, part in messages(graph) if field == GRAPH_NODE)
    return tuple(node for node in nodes if node is not None)


def _plugin_node(message: memoryview, declared: Mapping[str, DeclaredResult]) -> PluginNode | None:
    """The plugin of a NodeProto, or None if the node is not a plugin. `declared` are the declared values by name."""
    texts: dict[int, list[str]] = {NODE_NAME: [], NODE_OPERATOR: [], NODE_OUTPUT: [], _NODE_DOMAIN: []}
    attributes = {VERSION_ATTRIBUTE: "1", NAMESPACE_ATTRIBUTE: ""}
    for field, part in messages(message):
        if field in texts:
            texts[field].append(bytes(part).decode())
        elif field == NODE_ATTRIBUTE:
            values = {key: bytes(text).decode("utf-8", "replace") for key, text in messages(part)}
            if values.get(_NAME) in attributes:
                attributes[values[_NAME]] = values.get(_ATTRIBUTE_TEXT, "")
    if texts[_NODE_DOMAIN] != [ONNX_DOMAIN]:
        return None
    return PluginNode(
        node="".join(texts[NODE_NAME]),
        plugin="".join(texts[NODE_OPERATOR]),
        version=attributes[VERSION_ATTRIBUTE],
        namespace=attributes[NAMESPACE_ATTRIBUTE],
        results=tuple(declared[name] for name in texts[NODE_OUTPUT] if name in declared),
    )


def _declared_result(message: memoryview) -> DeclaredResult:
    """The declaration in a ValueInfoProto."""
    name, element, sizes = "", 0, []
    for field, part in messages(message):
        if field == _NAME:
            name = bytes(part).decode()
        elif field == _VALUE_TYPE:
            for kind, tensor in messages(part):
                if kind != _TYPE_TENSOR:
                    continue
                element = next((int(value) for key, value in fields(tensor) if key == _ELEMENT), 0)
                for key, shape in messages(tensor):
                    if key == _SHAPE:
                        sizes = [_size(dim) for entry, dim in messages(shape) if entry == _DIM]
    return name, element, tuple(sizes)


def _size(dim: memoryview) -> int | None:
    return next((int(value) for key, value in fields(dim) if key == _DIM_VALUE), None)
