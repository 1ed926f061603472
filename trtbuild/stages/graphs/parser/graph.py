"""The types and numbers of the values of an ONNX model, and the constants that new nodes read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
from onnx import helper as h

from trtbuild.stages.onnx_graphs import all_graphs
from trtbuild.stages.onnx_resizes import with_float32_sizes

#: The element type of a value (UNDEFINED if it is not known), and its sizes. A size that is not known is None. If the
#: number of axes is not known, None takes the place of all sizes.
_Type = tuple[int, list[int | None] | None]
_UNKNOWN: _Type = onnx.TensorProto.UNDEFINED, None

#: Element type → its largest finite number.
LARGEST = {
    onnx.TensorProto.FLOAT: float(np.finfo(np.float32).max),
    onnx.TensorProto.FLOAT16: float(np.finfo(np.float16).max),
    onnx.TensorProto.BFLOAT16: (2 - 2**-7) * 2.0**127,
}


class ModelFacts:
    """The opset of a model, the types and numbers of its values, and the constants that the new nodes read.

    Nested graphs may have values of equal names. Facts that differ between such values count as not known.
    """

    def __init__(self, model: onnx.ModelProto, opset: int) -> None:
        self.opset = opset
        #: Constants for the outer graph of the changed model.
        self.new_constants: list[onnx.TensorProto] = []
        #: The names that nodes read, or that a graph returns.
        self.read_names = _read_names(model)
        #: Name of a constant with one element → its number.
        self.numbers = _numbers(model)
        self._types = _types(model)
        self._initializers = _initializers(model)

    def element(self, name: str) -> int:
        """The element type of a value; UNDEFINED, which is 0, if it is not known."""
        return self._types.get(name, _UNKNOWN)[0]

    def float_element(self, name: str) -> int:
        """The element type of a value; FLOAT if it is not known."""
        return self.element(name) or onnx.TensorProto.FLOAT

    def sizes(self, name: str) -> list[int | None] | None:
        """The sizes of a value; None for a size that is not known, and None if the number of axes is not known."""
        return self._types.get(name, _UNKNOWN)[1]

    def initializer(self, name: str) -> np.ndarray | None:
        tensor = self._initializers.get(name)
        return None if tensor is None else onnx.numpy_helper.to_array(tensor)

    def add_constant(self, name: str, value: np.ndarray) -> str:
        """Add a constant, and return its name. The name has a number, because two nested graphs may use the same name."""
        unique = f"{name}.{len(self.new_constants)}"
        self.new_constants.append(onnx.numpy_helper.from_array(value, unique))
        return unique

    def add_number(self, name: str, number: float, element: int) -> str:
        """Like `add_constant`, for a scalar of any element type."""
        unique = f"{name}.{len(self.new_constants)}"
        self.new_constants.append(h.make_tensor(unique, element, [], [number]))
        return unique


def attribute_of(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((h.get_attribute_value(entry) for entry in node.attribute if entry.name == name), default)


def set_attribute(node: onnx.NodeProto, name: str, value: Any) -> None:
    drop_attributes(node, name)
    node.attribute.append(h.make_attribute(name, value))


def drop_attributes(node: onnx.NodeProto, *names: str) -> None:
    kept = [entry for entry in node.attribute if entry.name not in names]
    del node.attribute[:]
    node.attribute.extend(kept)


def _read_names(model: onnx.ModelProto) -> frozenset[str]:
    graphs = [*all_graphs(model.graph)]
    results = {value.name for graph in graphs for value in graph.output}
    return frozenset(results.union(*(node.input for graph in graphs for node in graph.node)))


def _initializers(model: onnx.ModelProto) -> Mapping[str, onnx.TensorProto]:
    found: dict[str, list[onnx.TensorProto]] = {}
    for graph in all_graphs(model.graph):
        for tensor in graph.initializer:
            found.setdefault(tensor.name, []).append(tensor)
    return {name: tensors[0] for name, tensors in found.items() if len(tensors) == 1}


def _numbers(model: onnx.ModelProto) -> Mapping[str, Any]:
    found: dict[str, list[Any]] = {}
    for graph in all_graphs(model.graph):
        for tensor in graph.initializer:
            found.setdefault(tensor.name, []).append(_number(tensor))
        for node in graph.node:
            for name in node.output:
                number = _number(h.get_attribute_value(node.attribute[0])) if node.op_type == "Constant" else None
                found.setdefault(name, []).append(number)
        for value in graph.input:
            found.setdefault(value.name, []).append(None)
    return {name: first for name, (first, *others) in found.items() if first is not None and {*others} <= {first}}


def _number(value: Any) -> Any:
    """The number of a tensor, or of an attribute of a Constant; None if it has not exactly one element."""
    if not isinstance(value, onnx.TensorProto):
        return value if isinstance(value, int | float) else None
    if value.data_location == onnx.TensorProto.EXTERNAL or math.prod(value.dims) != 1:
        return None
    return onnx.numpy_helper.to_array(value).item()


def _types(model: onnx.ModelProto) -> Mapping[str, _Type]:
    graph = onnx.shape_inference.infer_shapes(with_float32_sizes(model), data_prop=True).graph
    types: dict[str, _Type] = {}
    for each in all_graphs(graph):
        for tensor in each.initializer:
            _add_type(types, tensor.name, tensor.data_type, list(tensor.dims))
        for value in (*each.input, *each.value_info, *each.output):
            tensor_type = value.type.tensor_type
            sizes = [size.dim_value if size.HasField("dim_value") else None for size in tensor_type.shape.dim]
            _add_type(types, value.name, tensor_type.elem_type, sizes if tensor_type.HasField("shape") else None)
    return types


def _add_type(types: dict[str, _Type], name: str, element: int, sizes: list[int | None] | None) -> None:
    first, first_sizes = types.setdefault(name, (element, sizes))
    if first != element:
        types[name] = _UNKNOWN
    elif first_sizes != sizes:
        types[name] = element, None
