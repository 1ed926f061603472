"""Read the plugins of a serialized ONNX model, with the declared types of their results, from the protobuf wire format.

The field numbers are from onnx.proto (they never change). See `onnx_outline`.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtbuild.core.model.plugins import NAMESPACE_ATTRIBUTE, ONNX_DOMAIN, VERSION_ATTRIBUTE, described
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


@dataclass(frozen=True)
class PluginNode:
    """A node that is a plugin. `results` has the name, element type (TensorProto.DataType) and sizes of each result; a
    dynamic size is None."""

    node: str
    plugin: str
    version: str
    namespace: str
    results: tuple[tuple[str, int, tuple[int | None, ...]], ...] = ()

    @property
    def identity(self) -> tuple[str, str, str]:
        """The plugin in TensorRT's registry: name, version and namespace."""
        return self.plugin, self.version, self.namespace

    @property
    def described(self) -> str:
        """The plugin for people."""
        return described(*self.identity)


def read_plugins(model: bytes) -> tuple[PluginNode, ...]:
    """The plugins in the outer graph of `model`, in graph order. Raises ValueError if it is not a protobuf message."""
    if ONNX_DOMAIN.encode() not in model:
        return ()
    graph = next((part for field, part in messages(memoryview(model)) if field == MODEL_GRAPH), memoryview(b""))
    types = {}
    for field, part in messages(graph):
        if field in (_GRAPH_OUTPUT, _GRAPH_VALUE):
            name, element, sizes = _value(part)
            types[name] = (name, element, sizes)
    nodes = []
    for field, part in messages(graph):
        if field != GRAPH_NODE:
            continue
        texts: dict[int, list[str]] = {NODE_NAME: [], NODE_OPERATOR: [], NODE_OUTPUT: [], _NODE_DOMAIN: []}
        attributes = {VERSION_ATTRIBUTE: "1", NAMESPACE_ATTRIBUTE: ""}
        for entry, data in messages(part):
            if entry in texts:
                texts[entry].append(bytes(data).decode())
            elif entry == NODE_ATTRIBUTE:
                values = {key: bytes(text).decode("utf-8", "replace") for key, text in messages(data)}
                if values.get(_NAME) in attributes:
                    attributes[values[_NAME]] = values.get(_ATTRIBUTE_TEXT, "")
        if texts[_NODE_DOMAIN] == [ONNX_DOMAIN]:
            results = tuple(types[name] for name in texts[NODE_OUTPUT] if name in types)
            name, plugin = "".join(texts[NODE_NAME]), "".join(texts[NODE_OPERATOR])
            nodes.append(
                PluginNode(name, plugin, attributes[VERSION_ATTRIBUTE], attributes[NAMESPACE_ATTRIBUTE], results)
            )
    return tuple(nodes)


def _value(message: memoryview) -> tuple[str, int, tuple[int | None, ...]]:
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
