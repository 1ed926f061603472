"""Take the weights out of an ONNX model, and read their values.

An initializer is a weight if it is used, has at least `WEIGHT_BYTES` bytes, and has an element type that is allowed for
weights. Other used initializers, such as axes and shapes, and all initializers of nested graphs stay in the graph, where
their numbers are stored as raw data. (Strings are not changed.) Small Constant nodes, and all Constant nodes of nested
graphs, stay in the graph, too. Their numbers are stored as raw data, also if they are external.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.external_data_helper
import onnx.numpy_helper
import torch

from trtbuild.errors import SourceError
from trtbuild.stages.onnx_graphs import all_nodes, nested_graphs
from trtbuild.stages.trace.job import TraceJob

#: An initializer with fewer bytes does not become a weight.
WEIGHT_BYTES = 1024
#: Element type with several elements in a byte → the bits of an element. A weight cannot have such a type, because torch
#: has no tensors of it.
_BITS_OF_SMALL_TYPES = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}


def lift_constants(graph: onnx.GraphProto) -> None:
    """Replace Constant nodes that contain large tensors by initializers."""
    kept_nodes = []
    for node in graph.node:
        tensor = next((a.t for a in node.attribute if a.name == "value"), None) if node.op_type == "Constant" else None
        if tensor is not None and node.output and _size_bytes(tensor) >= WEIGHT_BYTES:
            graph.initializer.append(tensor)
            graph.initializer[-1].name = node.output[0]
        else:
            kept_nodes.append(node)
    if len(kept_nodes) < len(graph.node):
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept_nodes]
        graph.ClearField("node")
        graph.node.extend(nodes)


def take_weights(graph: onnx.GraphProto, folder: Path, job: TraceJob) -> dict[str, torch.Tensor]:
    """Remove the weights and the unused initializers from the graph. Returns the values of the weights by name, in the
    order of the file. `folder` has the external data."""
    used_names = {name for node in all_nodes(graph) for name in node.input} | {value.name for value in graph.output}
    used_names |= {value.name for nested in nested_graphs(graph) for value in nested.output}
    weights: dict[str, torch.Tensor] = {}
    small_initializers = []
    for tensor in graph.initializer:
        if tensor.name not in used_names:
            continue
        value = _weight_value(tensor, folder, job)
        if value is not None and value.numel() * value.element_size() >= WEIGHT_BYTES:
            weights[tensor.name] = value
        else:
            small_initializers.append(_with_raw_data(tensor, folder, job))
    graph.ClearField("initializer")
    graph.initializer.extend(small_initializers)
    for nested in nested_graphs(graph):
        for tensor in nested.initializer:
            tensor.CopyFrom(_with_raw_data(tensor, folder, job))
    for tensor in _attribute_tensors(graph):
        tensor.CopyFrom(_with_raw_data(tensor, folder, job))
    return weights


def numbers_in(folder: Path, job: TraceJob) -> Callable[[onnx.TensorProto], np.ndarray]:
    """Return a function that reads the numbers of an initializer. `folder` has the external data."""
    return lambda tensor: onnx.numpy_helper.to_array(_with_raw_data(tensor, folder, job))


def all_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors that may have external data: initializers and attributes, also those of nested graphs."""
    yield from graph.initializer
    for nested in nested_graphs(graph):
        yield from nested.initializer
    yield from _attribute_tensors(graph)


def _attribute_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    for node in all_nodes(graph):
        yield from (attribute.t for attribute in node.attribute if attribute.type == onnx.AttributeProto.TENSOR)


def location_of(tensor: onnx.TensorProto) -> str | None:
    """The file with the external data of a tensor; None if the data is in the model, and "" if the file is not named."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return None
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def dtype_name(element: int) -> str:
    """torch's name for an ``onnx.TensorProto.DataType``, such as ``float32``. For float8 types, and for types that torch
    does not have, ONNX's name in small letters. A number that ONNX does not know gives no name of a type."""
    if element not in onnx.TensorProto.DataType.values():
        return f"type {element}"
    name = str(onnx.TensorProto.DataType.Name(element)).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def _weight_value(tensor: onnx.TensorProto, folder: Path, job: TraceJob) -> torch.Tensor | None:
    """The value of an initializer; None if a weight cannot have its element type."""
    dtype = getattr(torch, dtype_name(tensor.data_type), None)
    if not isinstance(dtype, torch.dtype) or dtype_name(tensor.data_type).startswith(("float8", "complex")):
        return None
    if _type_name(tensor) in _BITS_OF_SMALL_TYPES:
        return None
    raw = _checked_bytes(tensor, folder, job)
    if not len(raw):
        return torch.empty(list(tensor.dims), dtype=dtype)
    writable = raw if isinstance(raw, bytearray) else bytearray(raw)  # bytes of an external file need no copy
    return torch.frombuffer(writable, dtype=dtype).reshape(list(tensor.dims))


def _checked_bytes(tensor: onnx.TensorProto, folder: Path, job: TraceJob) -> bytes | bytearray:
    """The row-major little-endian bytes of a tensor, from the model or its external file. Raises SourceError if the
    number of bytes does not fit the tensor's type and shape, or if the tensor does not say where its bytes are."""
    try:
        raw = _read_bytes(tensor, folder)
    except (ValueError, OverflowError) as error:
        raise SourceError(
            f"initializer {tensor.name!r} of {job.source.target} cannot be read: {error}",
            code="source",
            **job.place("source"),
        ) from error
    if len(raw) != _size_bytes(tensor):
        raise SourceError(
            f"initializer {tensor.name!r} of {job.source.target} has {len(raw)} bytes; its type and shape need "
            f"{_size_bytes(tensor)}",
            code="source",
            **job.place("source"),
        )
    return raw


def _read_bytes(tensor: onnx.TensorProto, folder: Path) -> bytes | bytearray:
    location = location_of(tensor)
    if location is not None:
        info = onnx.external_data_helper.ExternalDataInfo(tensor)
        with (folder / location).open("rb", buffering=0) as file:
            start, length = info.offset or 0, info.length or _size_bytes(tensor)  # a length of 0 means the size
            data = bytearray(max(0, min(length, os.fstat(file.fileno()).st_size - start)))
            file.seek(start)
            filled = 0
            while count := file.readinto(memoryview(data)[filled:]):  # one call reads at most 2 GiB
                filled += count
            return data[:filled] if filled < len(data) else data
    if tensor.HasField("raw_data"):
        return bytes(tensor.raw_data)
    return bytes(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor)).raw_data)


def _with_raw_data(tensor: onnx.TensorProto, folder: Path, job: TraceJob) -> onnx.TensorProto:
    """Copy a tensor, and store its numbers in `raw_data` of the copy. A tensor of strings is returned unchanged."""
    if tensor.data_type == onnx.TensorProto.STRING:
        return tensor
    copy = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=list(tensor.dims))
    copy.raw_data = bytes(_checked_bytes(tensor, folder, job))
    return copy


def _size_bytes(tensor: onnx.TensorProto) -> int:
    if tensor.data_type == onnx.TensorProto.STRING:
        return 0
    count = int(np.prod(list(tensor.dims), dtype=np.int64))
    if _type_name(tensor) in _BITS_OF_SMALL_TYPES:
        return (count * _BITS_OF_SMALL_TYPES[_type_name(tensor)] + 7) // 8
    return count * int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _type_name(tensor: onnx.TensorProto) -> str:
    return str(onnx.TensorProto.DataType.Name(tensor.data_type))
