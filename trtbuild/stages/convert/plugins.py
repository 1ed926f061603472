"""Find plugins in ONNX models, and write models without them.

The partition step asks TensorRT's parser about a model without its plugins. So the step needs neither the library of the
plugins nor a GPU, and its result does not depend on the library.
"""

from __future__ import annotations

import onnx

from trtbuild.core.model.plugins import ONNX_DOMAIN


def has_plugins(model: onnx.ModelProto) -> bool:
    """Whether a model has plugins in its outer graph."""
    return any(node.domain == ONNX_DOMAIN for node in model.graph.node)


def without_plugins(model: bytes) -> bytes:
    """Replace each result of a plugin by an input of the model. A model without plugins is returned unchanged.

    Plugins become Identity nodes that return the new inputs, so that all nodes keep their names and their order."""
    proto = onnx.ModelProto.FromString(model)
    if not has_plugins(proto):
        return model
    types = {value.name: value.type for value in (*proto.graph.value_info, *proto.graph.output)}
    nodes = []
    for node in proto.graph.node:
        if node.domain != ONNX_DOMAIN:
            nodes.append(node)
            continue
        for number, output in enumerate(node.output):
            if output:
                name = f"{node.name}_result{number}"
                proto.graph.input.add(name=name).type.CopyFrom(types[output])
                replaced = onnx.NodeProto(op_type="Identity", input=[name], output=[output])
                replaced.name = node.name if number == 0 else f"{node.name}_{number}"
                nodes.append(replaced)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    del proto.graph.value_info[:]
    for entry in list(proto.opset_import):
        if entry.domain == ONNX_DOMAIN:
            proto.opset_import.remove(entry)
    result: bytes = proto.SerializeToString(deterministic=True)
    return result
